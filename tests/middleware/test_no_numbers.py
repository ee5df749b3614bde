"""Answers with ``NaN`` or ``-Infinity``, which JSON does not have, as servers in Python write them.

Most client libraries in Python read such answers. They pass byte for byte.
"""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest

from headstart.dialects.dialect import decode_document
from support.raw_upstream import RawUpstream, ask_raw, sidecar_before

LISTED = b'"logprobs":{"content":[{"token":"L","logprob":%b}]}'
TEXT = b'-Infinity, \\"NaN\\" and Lima'
WHOLE = b'{"choices":[{"index":0,"message":{"content":"%b"},%b,"finish_reason":"stop"}]}'
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},%b}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b"[NaN, -Infinity,Infinity]", [None, -9999.0, None]),
        (b'{"a":"NaN","b":NaN}', {"a": "NaN", "b": None}),
        (rb'{"a\"":"\\","b":[-Infinity,"\"NaN"]}', {'a"': "\\", "b": [-9999.0, '"NaN']}),
        (rb'["\ud83d",NaN]', ["\ufffd", None]),
        (b"[NaNs]", None),
        (b'["NaN', None),
        (b"NaN of course", None),
    ],
)
def test_only_values_outside_of_strings_are_replaced(body: bytes, read: Any) -> None:
    assert decode_document(body) == read


@pytest.mark.parametrize("text", [b'NaN"', rb"NaN\"", b'NaN"x\\'], ids=["quote", "escape", "end"])
def test_texts_without_end_are_read_in_linear_time(text: bytes) -> None:
    began = process_time()
    assert decode_document(b'["' + text * 200_000) is None
    assert process_time() - began < 2.0


@pytest.mark.anyio
@pytest.mark.parametrize("number", [b"NaN", b"-Infinity"])
@pytest.mark.parametrize("stream", [False, True])
async def test_they_pass_and_a_repeat_is_a_hit_that_is_json(number: bytes, *, stream: bool) -> None:
    listed = LISTED % number
    answer = (CHUNK % (TEXT, listed) + END) if stream else WHOLE % (TEXT, listed)
    kind = b"text/event-stream" if stream else b"application/json"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    upstream = RawUpstream(head % (kind, len(answer)) + answer)
    asked = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Capital of Peru?"}],
            "stream": stream,
            "logprobs": True,
        }
    ).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    ) % (len(asked), asked)
    async with sidecar_before(upstream) as url:
        first = await ask_raw(url, request)
        again = await ask_raw(url, request)
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert listed in first
    assert len(upstream.requests) == 1
    assert TEXT in again
    value = b"null" if number == b"NaN" else b"-9999.0"
    assert b'"logprob":' + value in again
