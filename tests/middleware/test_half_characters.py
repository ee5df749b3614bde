"""Answers with half a surrogate pair, which is no character: they pass, and are not stored.

Halves that two events of a stream bring are joined.
"""

from __future__ import annotations

import json
from time import process_time

import pytest

from headstart.dialects.dialect import MalformedAnswerError, decode_document, decode_event
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.types import ReasoningDelta, StreamEvent, TextDelta, ToolCallDelta
from support.events import decoded
from support.raw_upstream import RawUpstream, ask_raw, sidecar_before

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
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
        said = CHUNK % half
        answer = response(b"text/event-stream", said + END + b"data: [DONE]\n\n")
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


PIECES = {
    "an emoji": ([rb"Hi \ud83d", rb"\ude00 there"], "Hi \U0001f600 there", True),
    "two emoji": ([rb"\ud83d", rb"\ude00\uD83D", rb"\uDE01"], "\U0001f600\U0001f601", True),
    "no second half": ([rb"Hi \ud83d", b" there"], "Hi \ufffd there", False),
    "no first half": ([rb"Hi ", rb"\ude00 there"], "Hi \ufffd there", False),
    "two first halves": ([rb"\ud83d", rb"\ud83d", rb"\ude00"], "\ufffd\U0001f600", False),
    "in the middle": ([rb"Hi \ud83d there", rb"\ude00"], "Hi \ufffd there\ufffd", False),
    "too late": ([rb"Hi \ud83d", rb"there \ude00"], "Hi \ufffdthere \ufffd", False),
    "at the end": ([rb"Hi \ud83d"], "Hi \ufffd", False),
}


@pytest.mark.parametrize("name", PIECES)
def test_halves_in_two_events_are_joined(name: str) -> None:
    pieces, text, _ = PIECES[name]
    events = decoded(OPENAI_CHAT, b"".join([*(CHUNK % piece for piece in pieces), END]))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ('{"index":1,"delta":{"content":"%s"}}', [TextDelta(text="\ufffd", choice=1)]),
        (
            '{"index":1,"delta":{"reasoning":"%s"}}',
            [ReasoningDelta(text="\ufffd", choice=1, field="reasoning")],
        ),
        (
            '{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%s"}}]}}',
            [ToolCallDelta(index=0, arguments="\ufffd")],
        ),
    ],
)
def test_half_without_the_other_stays_in_its_choice_and_part(
    choice: str, told: list[StreamEvent]
) -> None:
    chunk = b'data: {"choices":[%b]}\n\n' % choice.encode()
    other = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    events = decoded(OPENAI_CHAT, chunk % b"a" + chunk % rb"b\ud83d" + other + END)
    assert [event for event in events if "\ufffd" in str(event)] == told


def test_many_halves_are_read_in_linear_time() -> None:
    began = process_time()
    events = decoded(OPENAI_CHAT, CHUNK % (rb"\ud83d " * 160_000))
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(texts) == "\ufffd " * 160_000
    assert process_time() - began < 2.0


@pytest.mark.anyio
@pytest.mark.parametrize("name", PIECES)
async def test_a_hit_has_the_whole_character(name: str) -> None:
    pieces, text, is_hit = PIECES[name]
    said = b"".join([*(CHUNK % piece for piece in pieces), END, b"data: [DONE]\n\n"])
    upstream = RawUpstream(response(b"text/event-stream", said))
    async with sidecar_before(upstream) as url:
        first = await ask_raw(url, request(stream=True))
        again = await ask_raw(url, request(stream=True))
    assert said in first
    assert len(upstream.requests) == (1 if is_hit else 2)
    assert text.encode() in again or not is_hit


def test_only_halves_are_replaced() -> None:
    text = rb'{"a": "\ud83d\ude00 \\ud83d \n \ud83d", "b": "\u00e9"}'
    assert decode_document(text) == {"a": "\U0001f600 \\ud83d \n \ufffd", "b": "\u00e9"}
    assert decode_event(rb'{"a": "\ude00"}') == {"a": "\ufffd"}


@pytest.mark.parametrize("broken", [rb'{"a": "\ud83d', rb'{"a": "\ud83"}', b"{"])
def test_other_text_stays_unreadable(broken: bytes) -> None:
    assert decode_document(broken) is None
    with pytest.raises(MalformedAnswerError):
        decode_event(broken)
