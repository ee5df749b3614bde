"""Texts read by the run say exactly what decoding each frame says, or are left to the decoder."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_answers import ChatDecoder
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.middleware.reading import EventStream, SSEDecoder, TextShape, learn_shape
from headstart.types import Ended, ErrorReported, ReasoningDelta, StreamEvent, TextDelta
from support.events import decoded

if TYPE_CHECKING:
    from headstart.dialects.dialect import Dialect

OPENAI, ANTHROPIC, RESPONSES = OPENAI_CHAT, ANTHROPIC_MESSAGES, OPENAI_RESPONSES
START = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":1,'
    b'"content_block":{"type":"text","text":""}}\n\n'
)


def chunk(content: str, *, ascii: bool = False, **fields: object) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    body = {"id": "c", "model": "m", "choices": [choice], **fields}
    return b"data: %b\n\n" % json.dumps(body, ensure_ascii=ascii).encode()


THINK = START.replace(b'"text"', b'"thinking"').replace(b'"index":1', b'"index":0')


def thought(text: str) -> bytes:
    fields = {"content": "", "reasoning_content": text}
    return chunk("x").replace(b'"content": "x"', json.dumps(fields)[1:-1].encode())


def delta(text: str, index: int = 1, kind: str = "text") -> bytes:
    body = {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": f"{kind}_delta", kind: text},
    }
    line = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return f"event: content_block_delta\ndata: {line}\n\n".encode()


def numbered(text: str, number: object = 1, part: int = 0, **more: object) -> bytes:
    """Return a delta of Responses, whose number differs from event to event."""
    kind = "response.output_text.delta"
    place = {"item_id": "m", "output_index": 0, "content_index": part}
    body = {"type": kind, "sequence_number": number, **place, "delta": text, **more}
    line = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return f"event: {kind}\ndata: {line}\n\n".encode()


texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["word", " word", "\n", '"', "\\", '\\"', "\r\n", "\u2028", "\0", "content"]),
)
whole = texts.map(chunk)
chunks = st.one_of(
    whole,
    whole,
    texts.map(thought),
    texts.map(lambda text: chunk(text, ascii=True)),
    st.tuples(texts, st.text("ab1", max_size=3)).map(lambda two: chunk(two[0], obfuscation=two[1])),
    texts.map(lambda text: chunk(text, obfuscation='a"')),
    texts.map(lambda text: chunk(text).replace(b"\n", b"\r\n")),
    texts.map(lambda text: chunk(text).replace(b"\n", b"\r")),
    texts.map(lambda text: chunk(text, usage={"total_tokens": 1})),
    st.sampled_from(
        [
            b": waiting\n\n",
            b"data: [DONE]\n\n",
            b"data: {\n\n",
            b"\n",
            b"\r\n",
            b"id: 1\n",
            chunk("a").replace(b": ", b":"),
            chunk("a", note="twice"),
            chunk("x").replace(b"x", b"\xff"),
            chunk("x").replace(b"x", b"a tab\t"),
            chunk("x").replace(b"x", b"\xc3"),
            chunk("x").replace(b"x", b"\xa9"),
            chunk("x").replace(b"x", b"\\ud800"),
            chunk("x").replace(b"x", b"\n"),
            chunk("x").replace(b"x", b"\\"),
            chunk("x").replace(b"index", b"indices"),
            b'data: {"choices":[{"index":1,"delta":{"content":"other choice"}}]}\n\n',
        ]
    ),
)
deltas = st.one_of(
    texts.map(delta),
    texts.map(delta),
    texts.map(lambda text: delta(text, 0, "thinking")),
    texts.map(lambda text: delta(text, 0)),
    st.sampled_from([START, b'event: ping\ndata: {"type":"ping"}\n\n', b"data: {\n\n"]),
    st.just(b'data: {"type":"content_block_stop","index":1}\n\n'),
)


numbers = st.integers(0, 3000) | st.sampled_from([None, "1", 1.5, -1, 10**30, [1], {"a": 1}])
events_of_responses = st.one_of(
    st.builds(numbered, texts, numbers),
    st.builds(numbered, texts, st.integers(0, 3000)),
    st.builds(numbered, texts, st.integers(0, 3000), logprobs=st.just([])),
    st.builds(numbered, texts, numbers, st.integers(0, 1)),
    st.builds(
        lambda text, padding: numbered(text, 7, logprobs=[], obfuscation=padding),
        texts,
        st.text("ab1", max_size=3),
    ),
    st.sampled_from(
        [
            numbered("x", 7).replace(b":7,", b":007,"),
            numbered("x", 7).replace(b":7,", b":,"),
            numbered("x", 7).replace(b":7,", b":7 ,"),
            numbered("x", 7).replace(b'"sequence_number":7,', b""),
            b": waiting\n\n",
            b"data: {\n\n",
        ]
    ),
)


def read(dialect: Dialect, pieces: list[bytes], *, join_texts: bool = False) -> list[StreamEvent]:
    stream = EventStream(dialect, join_texts=join_texts)
    events: list[StreamEvent] = []
    for piece in pieces:
        found, at = stream.feed_texts(piece)
        events += found
        events += [event for _, said in stream.feed(piece[at:]) for event in said]
    return events


def up_to_end(dialect: Dialect, stream: bytes) -> bytes | None:
    """Return a stream up to its terminal event, or None: it has none."""
    decoder, read = dialect.decoder(), b""
    for frame in SSEDecoder().feed(stream):
        read += frame.raw
        if any(isinstance(event, Ended) for event in decoder.feed(frame)):
            return read
    return None


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def joined(events: list[StreamEvent]) -> list[StreamEvent]:
    """Put together the texts that follow each other."""
    out: list[StreamEvent] = []
    for event in events:
        last = out[-1] if out else None
        if (
            isinstance(event, TextDelta | ReasoningDelta)
            and isinstance(last, TextDelta | ReasoningDelta)
            and replace(event, text="") == replace(last, text="")
        ):
            out[-1] = replace(last, text=last.text + event.text)
        else:
            out.append(event)
    return out


@given(st.lists(chunks, max_size=8), st.lists(st.integers(min_value=0, max_value=900), max_size=4))
@example([chunk("a"), chunk("b").replace(b"b", b"\xc3"), chunk("c").replace(b"c", b"\xa9")], [])
@example([chunk("a", p="x"), chunk("b", p="yy"), chunk("c", p="")], [])
def test_chat_chunks_by_the_run_say_what_each_says(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join([chunk("first"), *frames])
    expected = decoded(OPENAI, up_to_end(OPENAI, stream) or stream)
    assert read(OPENAI, cut(stream, cuts)) == expected
    assert joined(read(OPENAI, cut(stream, cuts), join_texts=True)) == joined(expected)
    begin = stream.removesuffix(b"".join(frames))
    assert joined(read(OPENAI, [begin, *frames], join_texts=True)) == joined(expected)


def formed(choice: dict[str, Any], *, spaced: bool = False, **fields: Any) -> bytes:
    """Return a chunk as OpenAI's API writes it, or with the blanks of ``json.dumps``."""
    named = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **fields}
    last = {"usage": None} if named.pop("usage", None) else {}
    body = {**named, "choices": [{"index": 0, "logprobs": None, **choice}], **last}
    blanks = None if spaced else (",", ":")
    return b"data: %b\n\n" % json.dumps(body, separators=blanks, ensure_ascii=False).encode()


ROLE = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
CHOICES = st.one_of(
    texts.map(lambda text: {"delta": {"content": text}, "finish_reason": None}),
    texts.map(lambda text: {"delta": {"content": text}, "finish_reason": None}),
    texts.map(lambda text: {"delta": {"content": "a", "refusal": text}, "finish_reason": None}),
    texts.map(lambda text: {"delta": {"reasoning": text}, "finish_reason": None}),
    st.sampled_from(["stop", "length", '"', "", None]).map(
        lambda reason: {"delta": {}, "finish_reason": reason}
    ),
    st.sampled_from(
        [
            ROLE,
            {"delta": {}, "finish_reason": "stop", "index": 1},
            {"delta": {"content": "b"}, "finish_reason": None, "index": 1},
            {"delta": {"content": "c"}, "finish_reason": "stop"},
            {"delta": {"content": "a", "x": "a"}, "finish_reason": None},
            {"delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}},
            {"delta": {}, "finish_reason": "stop", "logprobs": {"content": []}},
        ]
    ),
)
FIELDS = st.sampled_from(
    [{}, {}, {}, {"id": "d"}, {"model": "other"}, {"service_tier": "{"}, {"obfuscation": "x"}]
)
STREAMS = st.tuples(
    st.booleans(),
    st.booleans(),
    st.sampled_from(["c", "d", '"choices":[', "{"]),
    st.lists(st.tuples(CHOICES, FIELDS), max_size=7),
)


@given(
    st.lists(STREAMS, min_size=2, max_size=4),
    st.lists(st.integers(min_value=0, max_value=900), max_size=4),
)
def test_streams_of_a_known_form_say_what_each_chunk_says(
    streams: list[tuple[bool, bool, str, list[tuple[dict[str, Any], dict[str, Any]]]]],
    cuts: list[int],
) -> None:
    for spaced, usage, id, chunks in streams:
        common: dict[str, Any] = {"spaced": spaced, "usage": usage, "id": id}
        each = [formed(choice, **{**common, **fields}) for choice, fields in [(ROLE, {}), *chunks]]
        stream = b"".join(each)
        expected = decoded(OPENAI, stream)
        assert read(OPENAI, cut(stream, cuts)) == expected
        assert read(OPENAI, each) == expected
        assert joined(read(OPENAI, cut(stream, cuts), join_texts=True)) == joined(expected)


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_is_read_by_the_form_of_an_earlier_one(spaced: bool, usage: bool) -> None:
    text = {"delta": {"content": "Hi"}, "finish_reason": None}
    end = {"delta": {}, "finish_reason": "stop"}
    ends: list[StreamEvent] = []
    delta = {"role": "assistant", "content": "", "of_no_other_test": None}
    role = {"delta": delta, "finish_reason": None}
    for id in ("first", "second"):
        names = {"id": id, "system_fingerprint": "fp"}
        common: dict[str, Any] = {"spaced": spaced, "usage": usage, **names}
        stream = EventStream(OPENAI, join_texts=True)
        list(stream.feed(formed(role, **common)))
        found, _ = stream.feed_texts(formed(text, **common))
        assert found == ((TextDelta(text="Hi"),) if id == "second" else ())
        list(stream.feed(formed(text, **common)))
        ((_, said),) = stream.feed(formed(end, **common))
        ends += said
    assert ends[1] is ends[0]  # it was not decoded again


@pytest.mark.parametrize(
    ("delta", "reason"),
    [
        (b'{"content":"a secret","content":""}', b'"stop"'),
        (b'{"role":"a secret"}', b'"stop"'),
        (b'{"content":"a secret","content":"b"}', b"null"),
        (b'{"reasoning":"a secret","reasoning":"","content":"b"}', b"null"),
    ],
)
def test_no_text_is_kept_for_other_streams(delta: bytes, reason: bytes) -> None:
    """A field that comes twice hides its first value from the events."""
    decoder = ChatDecoder()
    only_here = f"of_one_test_{len(delta)}"  # so the form is of no earlier stream
    begin = {"delta": {"role": "assistant", "content": "", only_here: None}}
    decoder.read_usual(formed({**begin, "finish_reason": None})[6:-2])
    end = b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}]}'
    assert decoder.form is not None
    decoder.read_usual(decoder.head + end % (delta, reason))
    assert not decoder.form.ends
    assert decoder.form.around_text is None
    decoder.read_usual(decoder.head + end % (b'{"content":"b"}', b"null"))
    decoder.read_usual(decoder.head + end % (b"{}", b'"stop"'))
    assert (len(decoder.form.ends), decoder.form.around_text is None) == (1, False)


@given(st.lists(deltas, max_size=8), st.lists(st.integers(min_value=0, max_value=900), max_size=4))
def test_messages_deltas_by_the_run_say_what_each_says(
    frames: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join([START, THINK, *frames])
    expected = decoded(ANTHROPIC, stream)
    assert read(ANTHROPIC, cut(stream, cuts)) == expected
    assert joined(read(ANTHROPIC, cut(stream, cuts), join_texts=True)) == joined(expected)
    begin = stream.removesuffix(b"".join(frames))
    assert joined(read(ANTHROPIC, [begin, *frames], join_texts=True)) == joined(expected)


@given(
    st.lists(events_of_responses, max_size=8),
    st.lists(st.integers(min_value=0, max_value=900), max_size=4),
)
def test_numbered_deltas_by_the_run_say_what_each_says(
    frames: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join([numbered("first", 0), *frames])
    expected = decoded(RESPONSES, stream)
    assert read(RESPONSES, cut(stream, cuts)) == expected
    assert joined(read(RESPONSES, cut(stream, cuts), join_texts=True)) == joined(expected)
    begin = stream.removesuffix(b"".join(frames))
    assert joined(read(RESPONSES, [begin, *frames], join_texts=True)) == joined(expected)


def test_numbered_deltas_are_read_by_the_run() -> None:
    frames = [numbered(text, 8 + at, logprobs=[]) for at, text in enumerate("abcd")]
    shape = learn_shape(frames[0], tuple(decoded(RESPONSES, frames[0])))
    assert shape is not None
    run = b"".join(frames[1:])
    assert shape.read(run + b": waiting\n\n", 0, join_texts=True) == (
        (TextDelta(text="bcd", block=0),),
        len(run),
    )


@given(st.lists(chunks, max_size=6), st.lists(st.integers(min_value=0, max_value=900), max_size=4))
def test_frames_and_rest_are_the_input_up_to_its_end(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join([chunk("first"), *frames, b"data: br"])
    stream = EventStream(OPENAI, join_texts=True)
    kept = b"".join(raw for piece in cut(data, cuts) for raw, _ in stream.feed(piece))
    answer = up_to_end(OPENAI, data)
    assert kept + stream.finish()[0] == (data if answer is None else answer)


def shape_of(first: bytes) -> TextShape:
    events = decoded(OPENAI, first)
    shape = learn_shape(first, (events[-1],))
    assert shape is not None
    return shape


@pytest.mark.parametrize("fields", [{}, {"obfuscation": "x"}, {"p": "abc"}, {"usage": None}])
def test_a_shape_is_learnt_and_used(fields: dict[str, Any]) -> None:
    run = chunk("second", **fields) + chunk('a "third"\n', **fields) + chunk("é", **fields)
    shape = shape_of(chunk("first", **fields))
    said = (TextDelta(text='seconda "third"\né'),)
    assert shape.read(run + b"data: [DONE]\n\n", 0, join_texts=True) == (said, len(run))


def test_reasoning_is_read_by_the_run_too() -> None:
    words = ("one", " two", " three")
    chat = [chunk("first"), *map(thought, words)]
    messages = [THINK, *(delta(text, 0, "thinking") for text in words)]
    for dialect, frames in ((OPENAI, chat), (ANTHROPIC, messages)):
        events = read(dialect, [b"".join(frames)], join_texts=True)
        said = [event.text for event in events if isinstance(event, ReasoningDelta)]
        assert said == ["one", " two three"]


@pytest.mark.parametrize(
    "other",
    [
        chunk(""),
        chunk("x", usage={"total_tokens": 1}),
        chunk("x", note="twice"),
        chunk("x").replace(b"x", b"\xff"),
        chunk("x").replace(b"x", b"a tab\t"),
        chunk("x")[:-1],
        b'data: {"choices":[{"index":1,"delta":{"content":"other choice"}}]}\n\n',
        b"data: [DONE]\n\n",
        b"data: {\n\n",
        b"",
    ],
)
def test_other_frames_are_left_to_the_decoder(other: bytes) -> None:
    assert shape_of(chunk("first")).read(other, 0, join_texts=True) == ((), 0)


def test_half_a_character_is_an_error_though_the_next_frame_holds_the_rest() -> None:
    halves = chunk("x").replace(b"x", b"\xc3") + chunk("x").replace(b"x", b"\xa9")
    events = read(OPENAI, [chunk("first") + chunk("second") + halves], join_texts=True)
    assert sum(isinstance(event, ErrorReported) for event in events) == 2


def test_a_thought_that_is_signed_ends_its_block() -> None:
    frame = b'data: {"text":"so"}\n\n'
    assert learn_shape(frame, (ReasoningDelta(text="so"),)) is not None
    assert learn_shape(frame, (ReasoningDelta(text="so", signature="c2ln"),)) is None


def test_text_that_stands_in_two_places_is_not_learnt() -> None:
    twice = chunk("a", text="a")
    assert learn_shape(twice, (TextDelta(text="a"),)) is None


def test_a_text_is_not_looked_for_beside_escapes() -> None:
    # The event's text is the first string, and the second one is a field of the same frame.
    escaped = chunk("\\u0061", text="a").replace(b"\\\\", b"\\")
    assert SSEDecoder().feed(escaped)[0].raw == escaped
    assert learn_shape(escaped, (TextDelta(text="a"),)) is None


def test_a_frame_that_a_carriage_return_ends_is_not_learnt() -> None:
    raw = chunk("a").replace(b"\n", b"\r")
    (frame,) = SSEDecoder().feed(raw + b":")
    assert learn_shape(frame.raw, (TextDelta(text="a"),)) is None


def test_a_piece_of_one_frame_is_read_at_once_if_its_text_has_no_escapes() -> None:
    shape = shape_of(chunk("x"))
    assert shape.read_one(chunk("n\u00e4chstes Wort")) == TextDelta(text="n\u00e4chstes Wort")
    left_to_read = (
        chunk("a") + chunk("b"),
        chunk('say "a"'),
        chunk("a line\n"),
        chunk(""),
        chunk("a") + b": waiting\n\n",
        chunk("a", usage={"total_tokens": 1}),
        chunk("x").replace(b"x", b"\xff"),
        chunk("x").replace(b"x", b"a tab\t"),
        chunk("x")[:-1],
    )
    assert [shape.read_one(data) for data in left_to_read] == [None] * len(left_to_read)


def test_a_run_of_empty_lines_is_one_piece() -> None:
    """A provider may send them without end: one by one they would hold the event loop."""
    stream = EventStream(OPENAI, join_texts=True)
    lines = b"\n" * 100_000
    assert list(stream.feed(lines)) == [(lines, ())]
    passed = b"".join(raw for raw, _ in stream.feed(b"data: {}\n\n\n\n: x\n\n\n\r\n\n\n"))
    assert passed == b"data: {}\n\n\n\n: x\n\n\n\r\n\n\n"
