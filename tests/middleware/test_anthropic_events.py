"""Reading Anthropic's answers, streamed or whole, and replaying them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headstart.attempts import Tokens
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.middleware.reading import SSEDecoder
from headstart.types import (
    Ended,
    ErrorReported,
    Finished,
    Reasoning,
    Started,
    Text,
    TextDelta,
    ToolCall,
    UsageReported,
)
from support.events import events_of, folded
from support.scripted_messages import USAGE, event, opening

if TYPE_CHECKING:
    from headstart.types import Completion, StreamEvent

DIALECT = ANTHROPIC_MESSAGES
END = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 20})
STOP = event("message_stop")


def read(raw: bytes) -> list[StreamEvent]:
    decoder, frames = DIALECT.decoder(), SSEDecoder()
    return [each for frame in frames.feed(raw) for each in decoder.feed(frame)]


def block(index: int, first: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    return b"".join(
        (
            event("content_block_start", index=index, content_block=first),
            *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
            event("content_block_stop", index=index),
        )
    )


def text_block(index: int, *texts: str) -> bytes:
    deltas = ({"type": "text_delta", "text": text} for text in texts)
    return block(index, {"type": "text", "text": ""}, *deltas)


def answer(*blocks: bytes, end: bytes = END) -> Completion:
    return folded(read(opening() + b"".join(blocks) + end + STOP))


def replayed(completion: Completion) -> tuple[Completion, dict[str, Any]]:
    """Return what a replayed stream says, and the replayed document."""
    rendered = DIALECT.render(completion)
    stream = rendered.sse("msg_1", 0, include_usage=True)
    return folded(read(stream)), json.loads(rendered.json("msg_1", 0))


def test_stream_of_text_is_read() -> None:
    events = read(opening() + event("ping") + text_block(0, "Hel", "lo") + END + STOP)
    usage = {**USAGE, "output_tokens": 1}
    assert events == [
        Started(id="msg_up", model="claude-real"),
        TextDelta(text=""),
        UsageReported(usage=usage),
        TextDelta(text="Hel", block=0),
        TextDelta(text="lo", block=0),
        Finished(reason="stop", native="end_turn"),
        UsageReported(usage=USAGE),
        Ended(),
    ]


def test_counts_of_the_prompt_cache_are_part_of_the_prompt() -> None:
    assert DIALECT.tokens(USAGE) == Tokens(prompt=30, completion=20, cached=15, cache_write=5)
    assert DIALECT.tokens({"input_tokens": 3, "cache_read_input_tokens": None}) == Tokens(prompt=3)
    used = Tokens(prompt=30, completion=20, cached=15, cache_write=5)
    assert DIALECT.tokens(DIALECT.usage(used)) == used


def test_tokens_that_are_kept_for_an_hour_are_told_apart() -> None:
    lives = {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3}
    kept = Tokens(prompt=30, completion=20, cached=15, cache_write=5, hour_write=3)
    assert DIALECT.tokens({**USAGE, "cache_creation": lives}) == kept
    assert DIALECT.tokens(DIALECT.usage(kept)) == kept
    assert DIALECT.tokens({**USAGE, "cache_creation": None}).hour_write == 0
    assert DIALECT.tokens({**USAGE, "cache_creation": {"ephemeral_1h_input_tokens": 99}}) == (
        replace(kept, hour_write=5)
    )


def test_a_replayed_stream_tells_each_field_of_the_usage_where_the_api_does() -> None:
    at_start = {"cache_creation": {"ephemeral_5m_input_tokens": 5}, "service_tier": "standard"}
    usage = {**USAGE, **at_start, "output_tokens": 1}
    start = event("message_start", message={"model": "m", "content": [], "usage": usage})
    completion = folded(read(start + text_block(0, "a") + END + STOP))
    stream = DIALECT.render(completion).sse("msg_1", 0, include_usage=False)
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]
    assert events[0]["message"]["usage"].items() >= at_start.items()
    (ending,) = (each for each in events if each["type"] == "message_delta")
    assert ending["usage"] == {n: v for n, v in USAGE.items() if n not in at_start}


def test_later_null_count_takes_nothing_back() -> None:
    end = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": None})
    usage = answer(text_block(0, "a"), end=end).usage
    assert usage is not None
    assert usage["input_tokens"] == 10


def test_tool_calls_are_numbered_from_zero_wherever_their_blocks_stand() -> None:
    completion = answer(
        text_block(0, "Let me see."),
        block(1, {"type": "tool_use", "id": "t1", "name": "now", "input": {}}),
        block(
            2,
            {"type": "tool_use", "id": "t2", "name": "add", "input": {}, "caller": {"type": "x"}},
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"a":'},
            {"type": "input_json_delta", "partial_json": "1}"},
        ),
    )
    assert completion.choices[0].parts == (
        Text(text="Let me see."),
        ToolCall(id="t1", name="now", arguments="{}"),
        ToolCall(id="t2", name="add", arguments='{"a":1}', extra={"caller": {"type": "x"}}),
    )
    again, document = replayed(completion)
    assert again == completion
    assert [each.get("input") for each in document["content"]] == [None, {}, {"a": 1}]
    assert document["content"][2]["caller"] == {"type": "x"}


@pytest.mark.parametrize("arguments", ['{"a":', "[1]", "1"])
def test_tool_call_that_was_cut_is_replayed_as_an_object(arguments: str) -> None:
    delta = {"type": "input_json_delta", "partial_json": arguments}
    first = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    again, document = replayed(answer(block(0, first, delta)))
    assert document["content"][0]["input"] == {"INVALID_JSON": arguments}
    assert again.choices[0].parts == (ToolCall(id="t", name="f", arguments=arguments),)


def test_thinking_keeps_the_signature_of_each_block() -> None:
    def thinking(index: int, text: str, signature: str) -> bytes:
        return block(
            index,
            {"type": "thinking", "thinking": "", "signature": ""},
            *({"type": "thinking_delta", "thinking": piece} for piece in text),
            {"type": "signature_delta", "signature": signature},
        )

    redacted = {"type": "redacted_thinking", "data": "opaque=="}
    completion = answer(
        thinking(0, "ab", "s0"),
        block(1, redacted),
        thinking(2, "", "s2"),
        thinking(3, "cd", "s3"),
        text_block(4, "Yes."),
    )
    assert completion.choices[0].parts == (
        Reasoning(text="ab", field="thinking", signature="s0"),
        Reasoning(text="", field="thinking", signature="s2"),
        Reasoning(text="cd", field="thinking", signature="s3"),
        Text(text="Yes."),
    )
    again, document = replayed(completion)
    assert again == completion
    assert document["content"] == [
        {"type": "thinking", "thinking": "ab", "signature": "s0"},
        redacted,
        {"type": "thinking", "thinking": "", "signature": "s2"},
        {"type": "thinking", "thinking": "cd", "signature": "s3"},
        {"type": "text", "text": "Yes."},
    ]


def test_citations_stay_with_their_block() -> None:
    one, two = {"type": "char_location", "cited_text": "a"}, {"type": "page_location"}
    completion = answer(
        text_block(0, "It is "),
        block(
            1,
            {"type": "text", "text": "", "citations": []},
            {"type": "text_delta", "text": "blue"},
            {"type": "citations_delta", "citation": one},
            {"type": "citations_delta", "citation": two},
        ),
        text_block(2, "."),
    )
    again, document = replayed(completion)
    assert again == completion
    assert document["content"] == [
        {"type": "text", "text": "It is "},
        {"type": "text", "text": "blue", "citations": [one, two]},
        {"type": "text", "text": "."},
    ]
    whole = folded(DIALECT.decode_body(200, json.dumps(document).encode()))
    assert replayed(whole)[1] == document
    stream = DIALECT.render(whole).sse("msg_1", 0, include_usage=False)
    assert stream.count(b'"citations_delta"') == 2


def test_unknown_blocks_deltas_and_fields_travel_untouched() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]}
    novel = {"type": "hologram", "shape": "cu", "since": 3}
    raw = (
        opening()
        + block(0, search, *_json_deltas('{"query":', '"x"}'))
        + block(1, found)
        + block(2, novel, {"type": "hologram_delta", "shape": "be", "since": 4})
        + block(3, {"type": "text", "text": "", "mood": 1}, {"type": "mood_delta", "mood": 2})
        + event("weather", sky="blue")
        + event(
            "message_delta",
            delta={"stop_reason": "stop_sequence", "stop_sequence": "###", "container": {"id": 1}},
            usage={"output_tokens": 2},
            context_management={"applied_edits": []},
        )
        + STOP
    )
    completion = folded(read(raw))
    again, document = replayed(completion)
    assert again == completion
    assert document["content"] == [
        {**search, "input": {"query": "x"}},
        found,
        {"type": "hologram", "shape": "cube", "since": 4},
        {"type": "text", "text": "", "mood": 2},
    ]
    assert document["container"] == {"id": 1}
    assert document["context_management"] == {"applied_edits": []}
    assert (document["stop_reason"], document["stop_sequence"]) == ("stop_sequence", "###")
    stream = DIALECT.render(completion).sse("msg_1", 0, include_usage=False)
    assert stream.index(b'"container"') > stream.index(b"message_delta")


def _json_deltas(*pieces: str) -> list[dict[str, Any]]:
    return [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "pause_turn": "pause_turn",
    "something_new": "something_new",
}


@pytest.mark.parametrize(("native", "finish"), REASONS.items())
def test_stop_reason_is_named_canonically_and_replayed_as_it_was(native: str, finish: str) -> None:
    end = event("message_delta", delta={"stop_reason": native}, usage={})
    completion = answer(text_block(0, "a"), end=end)
    assert completion.choices[0].finish == finish
    assert replayed(completion)[1]["stop_reason"] == native


def test_error_event_inside_a_stream_is_reported_with_its_status() -> None:
    error = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    (*_, last) = read(opening() + text_block(0, "a") + error)
    assert last == ErrorReported(message="Overloaded", code="overloaded_error", status=529)


def test_error_body_is_read() -> None:
    error = {"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}
    assert DIALECT.decode_body(404, json.dumps(error).encode()) == (
        ErrorReported(message="model: x", code="not_found_error", status=404),
    )
    assert DIALECT.decode_body(502, b"<html>") == (
        ErrorReported(message="the provider reported an error", status=502),
    )
    assert DIALECT.decode_body(200, json.dumps(error).encode()) == (
        ErrorReported(message="model: x", code="not_found_error", status=404),
    )


BROKEN = {
    "not JSON": b"data: {\n\n",
    "an array": b"data: []\n\n",
    "no message": event("message_start"),
    "content is an object": event("message_start", message={"content": {"a": 1}}),
    "no index": event("content_block_start", content_block={"type": "text"}),
    "a block without a type": event("content_block_start", index=0, content_block={}),
    "a block is a string": event("content_block_start", index=0, content_block="text"),
    "a text is a number": event(
        "content_block_start", index=0, content_block={"type": "text", "text": 3}
    ),
    "a delta without its block": event("content_block_delta", index=7, delta={"type": "x"}),
    "a delta is a string": event("content_block_delta", index=0, delta="x"),
    "a stop without its block": event("content_block_stop", index=7),
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
def test_broken_event_is_a_protocol_error(raw: bytes) -> None:
    (event,) = read(raw)
    assert isinstance(event, ErrorReported)
    assert event.code == "upstream_protocol_error"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"content":"x"}', b'{"content":["x"]}'])
def test_document_without_an_answer_is_a_protocol_error(body: bytes) -> None:
    (event,) = DIALECT.decode_body(200, body)
    assert isinstance(event, ErrorReported)
    assert event.code == "upstream_protocol_error"


def test_keep_alives_say_nothing() -> None:
    assert read(b": comment\n\n" + event("ping") + b"event: ping\n\n") == []


def test_long_text_is_replayed_in_pieces() -> None:
    completion = answer(text_block(0, "x" * 450))
    stream = DIALECT.render(completion).sse("msg_1", 0, include_usage=False)
    assert stream.count(b'"text_delta"') == 3
    assert b'"output_tokens":0' in stream.partition(b"\n\n")[0]


def test_rendering_counts_its_bytes() -> None:
    rendered = DIALECT.render(answer(text_block(0, "x" * 1000)))
    assert rendered.nbytes > 2000


# --- properties ------------------------------------------------------------------------------

VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4)
FIELDS = st.dictionaries(st.sampled_from(("mood", "tint")), VALUES, max_size=2)
CITATIONS = st.lists(st.fixed_dictionaries({"cited_text": st.text(max_size=5)}), max_size=3)
BLOCKS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": st.text(max_size=300)},
        optional={"citations": st.none() | CITATIONS},
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("thinking"),
            "thinking": st.text(max_size=300),
            "signature": st.text(max_size=5),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": st.text(min_size=1, max_size=3),
            "name": st.text(min_size=1, max_size=3),
            "input": st.dictionaries(st.text(max_size=3), VALUES, max_size=3),
        },
        optional={"caller": FIELDS},
    ),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": st.text(max_size=9)}),
)


@given(blocks=st.lists(BLOCKS, max_size=6), fields=FIELDS)
def test_any_answer_survives_storage_and_both_replays(
    blocks: list[dict[str, Any]], fields: dict[str, Any]
) -> None:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": blocks,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
        **fields,
    }
    completion = folded(DIALECT.decode_body(200, json.dumps(message).encode()))
    assert folded(events_of(completion)) == completion
    stored = msgspec.json.decode(msgspec.json.encode(completion), type=type(completion))
    again, document = replayed(stored)
    assert document == message
    # The stream tells citations one by one; folded into a document they are the same.
    assert replayed(again)[1] == message


@given(data=st.data())
def test_meaning_does_not_depend_on_where_the_bytes_were_cut(data: st.DataObject) -> None:
    raw = opening() + text_block(0, "é", "ü\n") + END + STOP
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)))
    frames, decoder = SSEDecoder(), DIALECT.decoder()
    events = [
        each
        for start, end in zip((0, *cuts), (*cuts, len(raw)), strict=True)
        for frame in frames.feed(raw[start:end])
        for each in decoder.feed(frame)
    ]
    assert events == read(raw)


@given(st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_nothing_that_an_upstream_sends_is_raised(value: Any) -> None:
    raw = json.dumps(value).encode()
    DIALECT.decode_body(200, raw)
    DIALECT.decode_body(500, raw)
    read(opening() + b"data: " + raw + b"\n\n")
