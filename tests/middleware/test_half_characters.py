"""Answers with half a surrogate pair, which is no character: they pass, and are not stored."""

from __future__ import annotations

import json

import pytest

from headstart.dialects.dialect import MalformedAnswerError, decode_document, decode_event
from support.raw_upstream import RawUpstream, ask_raw, sidecar_before

HALVES = [rb"\ud83d", rb"Hi \uD83D there", rb"\ude00", rb"\ude00\ud83d", rb"\\\ud83d"]


def request(*, stream: bool) -> bytes:
    """Return a request for an answer that the cache may keep."""
    message = {"role": "user", "content": "Smile"}
    body = json.dumps({"model": "m", "messages": [message], "stream": stream}).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
    target = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k"
    return f"{target}\r\n{head}\r\n\r\n".encode() + body


def response(kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


@pytest.mark.anyio
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("stream", [False, True])
async def test_half_a_pair_passes_byte_for_byte_and_is_asked_again(
    half: bytes, *, stream: bool
) -> None:
    if stream:
        said = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % half
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        answer = response(b"text/event-stream", said + end + b"data: [DONE]\n\n")
    else:
        said = b'{"choices":[{"index":0,"message":{"content":"%b"},"finish_reason":"stop"}]}' % half
        answer = response(b"application/json", said)
    upstream = RawUpstream(answer)
    async with sidecar_before(upstream) as url:
        for _ in range(2):
            came = await ask_raw(url, request(stream=stream))
            assert came.startswith(b"HTTP/1.1 200 OK\r\n")
            assert said in came
    assert len(upstream.requests) == 2


def test_only_halves_are_replaced() -> None:
    text = rb'{"a": "\ud83d\ude00 \\ud83d \n \ud83d", "b": "\u00e9"}'
    assert decode_document(text) == {"a": "\U0001f600 \\ud83d \n \ufffd", "b": "\u00e9"}
    assert decode_event(rb'{"a": "\ude00"}') == {"a": "\ufffd"}


@pytest.mark.parametrize("broken", [rb'{"a": "\ud83d', rb'{"a": "\ud83"}', b"{"])
def test_other_text_stays_unreadable(broken: bytes) -> None:
    assert decode_document(broken) is None
    with pytest.raises(MalformedAnswerError):
        decode_event(broken)
