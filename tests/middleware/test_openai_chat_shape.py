"""The text shape says exactly what decoding says, or leaves the chunk to the decoder."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.middleware.dialects.openai_chat_events import ChatDecoder
from headstart.middleware.dialects.openai_chat_shape import learn_shape
from headstart.middleware.sse import Frame
from headstart.types import TextDelta


def chunk(content: str, **fields: object) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    body = {"id": "c", "model": "m", "choices": [choice], **fields}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def frame(data: bytes) -> Frame:
    return Frame(b"data: " + data + b"\n\n", data, None)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=8))
def test_a_warm_decoder_agrees_with_a_fresh_one(texts: list[str]) -> None:
    warm = ChatDecoder()
    warm.feed(frame(chunk("first")))
    warm.feed(frame(chunk("second")))
    for text in texts:
        fresh = ChatDecoder()
        fresh.feed(frame(chunk("first")))
        assert warm.feed(frame(chunk(text))) == fresh.feed(frame(chunk(text)))


def test_a_shape_is_learnt_and_used() -> None:
    decoder = ChatDecoder()
    decoder.feed(frame(chunk("first")))
    shape = learn_shape(chunk("second"), decoder.feed(frame(chunk("second"))))
    assert shape is not None
    assert shape.text_of(chunk("third")) == "third"


@pytest.mark.parametrize(
    "other",
    [
        chunk('with "quotes"'),
        chunk("a\nline"),
        chunk(""),
        chunk("x", usage={"total_tokens": 1}),
        chunk("x", note="twice"),
        b'{"choices":[{"index":1,"delta":{"content":"other choice"}}]}',
        b"[DONE]",
        b"{",
    ],
)
def test_other_chunks_are_left_to_the_decoder(other: bytes) -> None:
    shape = learn_shape(chunk("first"), (TextDelta(text="first"),))
    assert shape is not None
    assert shape.text_of(other) is None


def test_invalid_utf8_in_the_text_is_left_to_the_decoder() -> None:
    shape = learn_shape(chunk("first"), (TextDelta(text="first"),))
    assert shape is not None
    assert shape.text_of(shape.before + b"\xff" + shape.after) is None


def test_text_that_stands_in_two_places_is_not_learnt() -> None:
    assert learn_shape(chunk("content"), (TextDelta(text="content"),)) is None
