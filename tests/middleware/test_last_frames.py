"""Streams whose last frame has no blank line, as some servers end them."""

from __future__ import annotations

import json

import pytest

from support.raw_upstream import RawUpstream, ask_raw, sidecar_before

pytestmark = pytest.mark.anyio

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
DONE = b"data: [DONE]"
ERROR = (
    b'data: {"error": {"message": "out of memory", "type": "internal", "code": "internal_error"}}'
)


def request() -> bytes:
    message = {"role": "user", "content": "Say hi"}
    body = json.dumps({"model": "m", "messages": [message], "stream": True}).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
    target = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k"
    return f"{target}\r\n{head}\r\n\r\n".encode() + body


def response(stream: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    return head % len(stream) + stream


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [FINISH, FINISH + b"\n\n" + DONE], ids=["finish", "done"])
async def test_a_last_frame_that_is_whole_counts_and_gets_its_end(last: bytes, end: bytes) -> None:
    upstream = RawUpstream(response(TEXT + last + end))
    async with sidecar_before(upstream) as url:
        first = await ask_raw(url, request())
        again = await ask_raw(url, request())
    assert last + end.removesuffix(b"\n") + b"\n\n" in first
    assert len(upstream.requests) == 1, "it is stored"
    assert b'"content":"Hi"' in again


async def test_an_error_as_last_frame_is_told() -> None:
    async with sidecar_before(RawUpstream(response(ERROR))) as url:
        came = await ask_raw(url, request())
    assert came.startswith(b"HTTP/1.1 502 ")
    assert b"out of memory" in came


async def test_an_error_after_text_reaches_the_client() -> None:
    async with sidecar_before(RawUpstream(response(TEXT + ERROR))) as url:
        came = await ask_raw(url, request())
    assert b"out of memory" in came.partition(TEXT)[2]
    assert DONE not in came


@pytest.mark.parametrize("cut", [FINISH[:-3], b"data: [DO", b"data: ", b"da"])
async def test_a_frame_that_was_cut_does_not_count(cut: bytes) -> None:
    upstream = RawUpstream(response(TEXT + cut))
    async with sidecar_before(upstream) as url:
        came = await ask_raw(url, request())
        await ask_raw(url, request())
    assert b"ended before its answer did" in came
    assert len(upstream.requests) > 1
