"""Providers whose answers have a wrong media type, or bytes that official clients skip.

And headers that keep the proxies between Headstart and a client from collecting a stream.
"""

from __future__ import annotations

import json

import openai
import pytest

from support.proxied import proxied
from support.raw_upstream import RawUpstream, raw_upstream
from support.scripted import chunk
from support.sdks import KEY, streamed_text

pytestmark = pytest.mark.anyio

STREAM = b"".join(
    [
        chunk({"role": "assistant", "content": "Sky"}),
        chunk({"content": " blue."}),
        chunk({}, "stop"),
        b"data: [DONE]\n\n",
    ]
)
TYPES = {
    "none": b"",
    "text": b"content-type: text/plain; charset=utf-8\r\n",
    "bytes": b"content-type: application/octet-stream\r\n",
    "json": b"content-type: application/json\r\n",
}


def answer(kind: bytes, *pieces: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\n%b" % (kind, chunks)


async def ask_whole(url: str, *, responses: bool = False) -> str | None:
    """Return the text that OpenAI's client reads in an answer that is no stream."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        if responses:
            return (await client.responses.create(model="m", input="Sky?")).output_text
        reply = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Sky?"}]
        )
        return reply.choices[0].message.content


@pytest.mark.parametrize("first", [len(STREAM), 2], ids=["whole", "cut"])
@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
async def test_a_stream_under_another_media_type_is_a_stream(kind: bytes, first: int) -> None:
    provider = RawUpstream(answer(kind, STREAM[:first], STREAM[first:] or b": more\n\n"))
    async with raw_upstream(provider) as url:
        assert await streamed_text(url) == "Sky blue."  # the official client reads it, too
        async with proxied(provider={"base_url": url}) as proxy:
            assert await streamed_text(proxy.url) == "Sky blue."
            hit = await proxy.ask("Sky?", stream=True, headers={"authorization": f"Bearer {KEY}"})
            assert hit.headers["x-cache"] == "HIT"
            assert await streamed_text(proxy.url, responses=True) == "Sky blue."
    assert len(provider.requests) == 2


@pytest.mark.parametrize("begun", [b": waiting\n\n", b"\xef\xbb\xbf", b"\n"])
async def test_such_a_stream_says_to_the_client_that_it_is_one(begun: bytes) -> None:
    provider = RawUpstream(answer(TYPES["text"], begun + STREAM))
    async with raw_upstream(provider) as url, proxied(provider={"base_url": url}) as proxy:
        miss = await proxy.ask(stream=True)
    assert (miss.status, miss.headers["content-type"]) == (200, "text/event-stream")
    assert miss.body == begun + STREAM


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        (b"", "no-cache, no-transform"),
        (b"cache-control: no-cache\r\n", "no-cache, no-transform"),
        (b"cache-control: private, max-age=0\r\n", "private, max-age=0, no-transform"),
        (b"cache-control: no-transform, no-cache\r\n", "no-transform, no-cache"),
    ],
)
async def test_proxies_are_asked_not_to_compress_a_stream(sent: bytes, passed: str) -> None:
    # Node's "compression" would collect its events, and OpenAI's client would see none in time.
    kind = b"content-type: text/event-stream\r\n"
    provider = RawUpstream(answer(kind + sent, STREAM))
    async with raw_upstream(provider) as url, proxied(provider={"base_url": url}) as proxy:
        miss = await proxy.ask("Sky?", stream=True)
        hit = await proxy.ask("Sky?", stream=True)
    assert (miss.headers["cache-control"], miss.headers["x-accel-buffering"]) == (passed, "no")
    assert hit.headers["x-cache"] == "HIT"
    assert hit.headers["cache-control"] == "no-cache, no-transform"


@pytest.mark.parametrize("responses", [False, True], ids=["untouched", "translated"])
async def test_a_document_behind_a_byte_order_mark_is_an_answer(responses: bool) -> None:
    message = {"role": "assistant", "content": "Sky blue."}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    document = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    body = b"\xef\xbb\xbf" + json.dumps({**document, "choices": choices}).encode()
    provider = RawUpstream(answer(TYPES["json"], body))
    async with raw_upstream(provider) as url:
        assert await ask_whole(url) == "Sky blue."  # the official client reads it, too
        async with proxied(provider={"base_url": url}) as proxy:
            for _ in range(2):
                assert await ask_whole(proxy.url, responses=responses) == "Sky blue."
    assert len(provider.requests) == 2


@pytest.mark.parametrize("first", [1, 400], ids=["cut", "whole"])
async def test_a_document_under_the_media_type_of_a_stream_is_an_answer(first: int) -> None:
    message = {"role": "assistant", "content": "Sky blue."}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    document = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    body = json.dumps({**document, "choices": choices}).encode()
    kind = b"content-type: text/event-stream\r\n"
    provider = RawUpstream(
        answer(kind, body[:first], body[first:]) if first < 400 else answer(kind, body)
    )
    async with raw_upstream(provider) as url, proxied(provider={"base_url": url}) as proxy:
        for verdict in ("MISS", "HIT"):
            reply = await proxy.ask("Sky?", headers={"authorization": f"Bearer {KEY}"})
            assert (reply.status, reply.headers["x-cache"]) == (200, verdict)
            assert reply.headers["content-type"].startswith("application/json")
            assert json.loads(reply.body)["choices"][0]["message"]["content"] == "Sky blue."
    assert len(provider.requests) == 1


async def test_events_for_who_wants_a_document_stay_an_answer() -> None:
    provider = RawUpstream(answer(b"content-type: text/event-stream\r\n", STREAM))
    async with raw_upstream(provider) as url, proxied(provider={"base_url": url}) as proxy:
        reply = await proxy.ask("Sky?")
    assert reply.status == 200
    assert b"Sky" in reply.body


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
async def test_an_error_instead_of_a_stream_stays_an_error(kind: bytes) -> None:
    error = json.dumps({"error": {"message": "overloaded", "type": "server_error", "code": 503}})
    provider = RawUpstream(answer(kind, error.encode()))
    async with raw_upstream(provider) as url, proxied(provider={"base_url": url}) as proxy:
        reply = await proxy.ask(stream=True)
    assert reply.status == 503
    assert json.loads(reply.body)["error"]["message"] == "overloaded"
