from __future__ import annotations

import json
import random
from typing import Any

import pytest

from headstart.attempts import Tokens
from headstart.dialects.dialect import Frame
from headstart.dialects.openai_answers import ChatDecoder, decode_body
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.reading import EventStream, FrameReader, SSEDecoder
from headstart.types import (
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    ReasoningDelta,
    RefusalDelta,
    Started,
    StreamEvent,
    Text,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from support.events import folded

DIALECT = OPENAI_CHAT
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def frame(chunk: Any, event: bytes | None = None) -> Frame:
    return Frame(b"", json.dumps(chunk).encode(), event)


def sent(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    beside = {k: fields.pop(k) for k in ("finish_reason", "logprobs") if k in fields}
    return {"choices": [{"index": 0, "delta": delta or {}, **beside}], **fields}


def decode(*chunks: dict[str, Any]) -> list[StreamEvent]:
    """Decode chunks, leaving out the mark that the choice began."""
    decoder = DIALECT.decoder()
    events = [event for each in chunks for event in decoder.feed(frame(each))]
    return [event for event in events if event != TextDelta(text="")]


def test_choice_begins_once_and_a_role_is_not_content() -> None:
    decoder = DIALECT.decoder()
    role = chunk({"role": "assistant", "content": "", "refusal": None})
    assert decoder.feed(frame(role)) == (TextDelta(text=""),)
    assert decoder.feed(frame(role)) == ()


def test_text_reasoning_and_refusal_are_told_apart() -> None:
    assert decode(
        chunk({"content": None, "reasoning_content": "hm"}),
        chunk({"content": "a", "reasoning": "so"}),
        chunk({"content": "b"}),
        chunk({"refusal": "no"}),
    ) == [
        ReasoningDelta(text="hm"),
        ReasoningDelta(text="so", field="reasoning"),
        TextDelta(text="a"),
        TextDelta(text="b"),
        RefusalDelta(text="no"),
    ]


def test_answer_is_named_again_only_when_a_later_chunk_knows_more() -> None:
    azure = {"id": "", "model": "", "created": 0, "object": "", "choices": []}
    named = {"id": "c", "model": "m", "created": 9, "choices": []}
    assert decode(azure, named, named, {**named, "system_fingerprint": "fp"}) == [
        Started(id="c", model="m", created=9),
        Started(id="c", model="m", created=9, fingerprint="fp"),
    ]


def test_done_ends_the_answer() -> None:
    decoder = DIALECT.decoder()
    (done,) = SSEDecoder().feed(b"data: [DONE]\n\n")
    assert decoder.feed(done) == (Ended(),)


@pytest.mark.parametrize("raw", [b": ping\n\n", b"data:\n\n", b'data: {"type":"ping"}\n\n', b"\n"])
def test_keep_alive_says_nothing(raw: bytes) -> None:
    (silent,) = SSEDecoder().feed(raw)
    assert DIALECT.decoder().feed(silent) == ()


def test_finish_keeps_the_native_reason_when_it_differs() -> None:
    same = {"index": 0, "finish_reason": "stop", "native_finish_reason": "stop"}
    other = {"index": 0, "finish_reason": "stop", "native_finish_reason": "MALFORMED"}
    finishes = [e for e in decode({"choices": [same]}, {"choices": [other]}) if type(e) is Finished]
    assert finishes == [Finished(reason="stop"), Finished(reason="stop", native="MALFORMED")]


def test_logprobs_are_kept_as_sent() -> None:
    value = {"content": [{"token": "a", "logprob": -1.0}], "refusal": None}
    assert decode(chunk({"content": "a"}, logprobs=value))[1:] == [LogprobsDelta(value=value)]


# --- usage -----------------------------------------------------------------------------------

USAGE_CHUNKS = {
    "OpenAI": ({"choices": [], "usage": USAGE}, True),
    "vLLM, with its fingerprint": (
        {"model": "m", "system_fingerprint": "fp", "choices": [], "usage": USAGE},
        True,
    ),
    "Cerebras, with its times": ({"choices": [], "usage": USAGE, "time_info": {"a": 1}}, True),
    "Mistral, with the finish": (chunk({"content": ""}, finish_reason="stop", usage=USAGE), False),
    "OpenRouter, with an empty choice": (chunk({"content": ""}, usage=USAGE), False),
    "Groq, in its own field": (
        chunk({}, finish_reason="stop", x_groq={"id": "req", "usage": USAGE}),
        False,
    ),
}


@pytest.mark.parametrize(("usage_chunk", "alone"), USAGE_CHUNKS.values(), ids=USAGE_CHUNKS.keys())
def test_usage_is_found_and_only_the_extra_chunk_is_extra(
    usage_chunk: dict[str, Any], alone: bool
) -> None:
    reader = FrameReader(DIALECT, "request", strip_usage=True)
    reader.feed(sent(chunk({"role": "assistant"})))
    raw = sent(usage_chunk)
    piece = reader.feed(raw)
    assert [event.usage for event in piece.events if isinstance(event, UsageReported)] == [USAGE]
    assert piece.data == (b"" if alone else raw)


@pytest.mark.parametrize(
    "quiet", [{"choices": [], "moderation": {}}, chunk({"content": "a"}), {"choices": []}]
)
def test_chunk_without_usage_is_not_the_extra_chunk(quiet: dict[str, Any]) -> None:
    raw = sent(quiet)
    assert FrameReader(DIALECT, "request", strip_usage=True).feed(raw).data == raw


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (USAGE, Tokens(prompt=3, completion=4)),
        ({}, Tokens()),
        ({"prompt_tokens": None, "completion_tokens": "4"}, Tokens()),
        ({"prompt_tokens": -1, "completion_tokens": True, "prompt_tokens_details": 1}, Tokens()),
        ({"prompt_tokens": 3, "prompt_cache_hit_tokens": 2}, Tokens(prompt=3, cached=2)),
        (
            OPENAI_CHAT.usage(Tokens(9, 8, cached=4, cache_write=3, reasoning=2)),
            Tokens(9, 8, cached=4, cache_write=3, reasoning=2),
        ),
    ],
)
def test_tokens_are_counted_only_where_they_are_counts(
    usage: dict[str, Any], tokens: Tokens
) -> None:
    assert DIALECT.tokens(usage) == tokens


# --- tool calls ------------------------------------------------------------------------------


def tool(**fields: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [fields]})


def test_tool_call_arrives_in_fragments() -> None:
    assert decode(
        tool(index=0, id="a", type="function", function={"name": "f", "arguments": ""}),
        tool(index=0, function={"arguments": "{}"}),
    ) == [
        ToolCallDelta(index=0, id="a", name="f"),
        ToolCallDelta(index=0, arguments="{}"),
    ]


def test_a_tool_call_that_is_in_no_array_is_read() -> None:
    """Text Generation Inference up to 3.0 streams its one call like this."""
    named, rest = {"name": "f", "arguments": "{"}, {"name": None, "arguments": "}"}
    call = {"index": 0, "id": "", "type": "function"}
    assert decode(
        chunk({"tool_calls": {**call, "function": named}}),
        chunk({"tool_calls": {**call, "function": rest}}),
    ) == [
        ToolCallDelta(index=0, name="f", arguments="{"),
        ToolCallDelta(index=0, arguments="}"),
    ]


NUMBERINGS = {
    "from one": (1, 2, 1),
    "all zero, told apart by id": (0, 0, 0),
    "none": (None, None, None),
}


@pytest.mark.parametrize("indices", NUMBERINGS.values(), ids=NUMBERINGS.keys())
def test_tool_calls_are_numbered_from_zero(indices: tuple[int | None, ...]) -> None:
    events = decode(
        tool(index=indices[0], id="a", function={"name": "f", "arguments": "{}"}),
        tool(index=indices[1], id="b", function={"name": "f", "arguments": "{}"}),
    )
    assert [event.index for event in events if isinstance(event, ToolCallDelta)] == [0, 1]


def test_fragment_without_index_goes_on_with_the_last_call() -> None:
    events = decode(
        tool(id="a", function={"name": "f", "arguments": "{"}),
        tool(function={"arguments": "}"}),
        tool(id="a", function={"arguments": " "}),
    )
    assert {event.index for event in events if isinstance(event, ToolCallDelta)} == {0}


def test_other_kinds_of_calls_and_their_fields_are_kept() -> None:
    signed = {"google": {"thought_signature": "s"}}
    called = {"name": "f", "arguments": "{}"}
    assert decode(
        tool(index=0, id="a", type="custom", custom={"name": "g", "input": "x"}),
        tool(index=1, id="b", type="function", function=called, extra_content=signed),
    ) == [
        ToolCallDelta(index=0, id="a", name="g", arguments="x", kind="custom"),
        ToolCallDelta(index=1, id="b", name="f", arguments="{}", extra={"extra_content": signed}),
    ]


def test_deprecated_function_call_is_a_call_without_id() -> None:
    assert decode(
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": "{}"}}),
    ) == [
        ToolCallDelta(index=0, name="f", kind="function_call"),
        ToolCallDelta(index=0, arguments="{}", kind="function_call"),
    ]


def test_arguments_sent_as_an_object_become_text() -> None:
    (call,) = decode(tool(index=0, id="a", function={"name": "f", "arguments": {"x": 1}}))
    assert isinstance(call, ToolCallDelta)
    assert call.arguments == '{"x":1}'


# --- what this version does not know -----------------------------------------------------------


def test_unknown_fields_are_kept_where_they_stood() -> None:
    odd = {
        "provider": "P",
        "obfuscation": "xyz",
        "p": "abc",
        "choices": [
            {"index": 0, "delta": {"channel": "final", "audio": None}, "content_filter": {"a": 1}}
        ],
    }
    assert decode(odd) == [
        ExtraDelta(fields={"channel": "final"}),
        ExtraDelta(fields={"content_filter": {"a": 1}}, beside=True),
        ExtraDelta(fields={"provider": "P"}, choice=None),
    ]


def test_content_in_parts_is_kept_as_sent() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    assert decode(chunk({"content": parts})) == [ExtraDelta(fields={"content": parts})]


# --- errors ----------------------------------------------------------------------------------

ERRORS: dict[str, tuple[Any, bytes | None, ErrorReported]] = {
    "OpenAI": (
        {"error": {"message": "m", "type": "server_error", "param": None, "code": None}},
        None,
        ErrorReported(message="m", code="server_error"),
    ),
    "Groq": (
        {"error": {"message": "m", "code": "tool_use_failed", "status_code": 400}},
        b"error",
        ErrorReported(message="m", code="tool_use_failed", status=400),
    ),
    "OpenRouter, with choices": (
        chunk({"content": ""}, error={"code": 502, "message": "m"}),
        None,
        ErrorReported(message="m", code="502", status=502),
    ),
    "vLLM": (
        {"object": "error", "message": "m", "type": "BadRequestError", "code": 400},
        None,
        ErrorReported(message="m", code="400", status=400, is_foreign=True),
    ),
    "FastChat": (
        {"text": "m", "error_code": 50001},
        None,
        ErrorReported(message="m", code="50001", is_foreign=True),
    ),
    "LMDeploy's proxy": (
        {"error": True, "status": 500, "message": "m"},
        None,
        ErrorReported(message="m", status=500),
    ),
    "TGI": (
        {"error": {"message": "m", "http_status_code": 424}},
        None,
        ErrorReported(message="m", status=424),
    ),
    "a bare string": ({"error": "m"}, None, ErrorReported(message="m")),
    "named by the event alone": (
        {"detail": "m"},
        b"error",
        ErrorReported(message="m", is_foreign=True),
    ),
}


@pytest.mark.parametrize(("error", "event", "reported"), ERRORS.values(), ids=ERRORS.keys())
def test_error_in_the_stream_is_reported(
    error: Any, event: bytes | None, reported: ErrorReported
) -> None:
    assert DIALECT.decoder().feed(frame(error, event))[-1] == reported


UNREADABLE = {
    "not JSON": b"{",
    "not an object": b"[]",
    "invalid UTF-8": b'{"choices":"\xff"}',
    "nested too deep": b"[" * 100_000,
    "choices is a string": b'{"choices":"x"}',
    "a choice is a number": b'{"choices":[1]}',
    "many choices": b'{"choices":[%s]}' % b",".join([b"{}"] * 4097),
    "many tool calls": b'{"choices":[{"delta":{"tool_calls":[%s]}}]}' % b",".join([b"{}"] * 4097),
    "delta is a list": b'{"choices":[{"delta":[]}]}',
    "tool_calls is an object": b'{"choices":[{"delta":{"tool_calls":{}}}]}',
    "a function is a string": b'{"choices":[{"delta":{"tool_calls":[{"function":"f"}]}}]}',
    "function_call is a string": b'{"choices":[{"delta":{"function_call":"f"}}]}',
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_frame_is_an_error_and_not_an_exception(data: bytes) -> None:
    (event,) = DIALECT.decoder().feed(Frame(b"", data, None))
    assert isinstance(event, ErrorReported)
    assert event.code == "upstream_protocol_error"


USUAL = b'{"id":"i","created":1,"model":"m","choices":[{"index":0,"delta":%b}]}'
DELTAS = {
    "tool_calls is an object": b'{"tool_calls":{}}',
    "many tool calls": b'{"tool_calls":[%s]}' % b",".join([b"{}"] * 4097),
    "a tool call is a string": b'{"tool_calls":["f"]}',
    "a function is a string": b'{"tool_calls":[{"function":"f"}]}',
    "function_call is a string": b'{"function_call":"f"}',
}


@pytest.mark.parametrize("delta", DELTAS.values(), ids=DELTAS.keys())
def test_unreadable_calls_in_a_usual_chunk_are_an_error_and_not_an_exception(delta: bytes) -> None:
    data = USUAL % delta
    events = [
        event
        for _, found in EventStream(DIALECT, join_texts=False).feed(b"data: %b\n\n" % data)
        for event in found
    ]
    assert [event.code for event in events if isinstance(event, ErrorReported)] == [
        "upstream_protocol_error"
    ]
    (event,) = DIALECT.decode_body(200, data)
    assert isinstance(event, ErrorReported)
    assert event.code == "upstream_protocol_error"


# --- whole answers ---------------------------------------------------------------------------


def test_a_whole_answer_has_an_end_event() -> None:
    calls = [{"id": "null", "function": {"name": "f", "arguments": a}} for a in ("1", "2")]
    message = {"role": "assistant", "content": "Hi", "reasoning": "hm", "tool_calls": calls}
    answer = {
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    assert DIALECT.decode_body(200, json.dumps(answer).encode()) == (
        Started(model="m"),
        TextDelta(text=""),
        ReasoningDelta(text="hm", field="reasoning"),
        TextDelta(text="Hi"),
        ToolCallDelta(index=0, id="null", name="f", arguments="1"),
        ToolCallDelta(index=1, id="null", name="f", arguments="2"),
        Finished(reason="stop"),
        UsageReported(usage=USAGE),
        Ended(),
    )


def test_texts_after_thinking_in_content_parts_are_text() -> None:
    """Mistral's reasoning models send whole answers in this form."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [thinking, {"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]
    message = {"role": "assistant", "content": parts, "tool_calls": None}
    body = {"model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    completion = folded(list(DIALECT.decode_body(200, json.dumps(body).encode())))
    (choice,) = completion.choices
    assert (choice.parts, choice.extra) == ((Text(text="Hi you"),), {"content": [thinking]})
    replay = json.loads(DIALECT.render(completion).json("id", 1))["choices"][0]["message"]
    assert replay["content"] == [thinking, {"type": "text", "text": "Hi you"}]


@pytest.mark.parametrize(
    "between", [{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "A", "x": 1}]
)
def test_content_parts_that_are_not_in_order_are_kept_as_sent(between: dict[str, Any]) -> None:
    parts = [{"type": "text", "text": "A"}, between, {"type": "text", "text": "B"}]
    assert decode(chunk({"content": parts})) == [ExtraDelta(fields={"content": parts})]


BODIES: dict[str, tuple[int, bytes, int | None]] = {
    "an error": (429, b'{"error":{"message":"slow down","code":"rate"}}', 429),
    "an error in a list": (400, b'[{"error":{"code":400,"message":"no"}}]', 400),
    "an error page": (502, b"<html>Bad gateway</html>", 502),
    "an empty error": (500, b"", 500),
    "an error inside a 200": (200, b'{"error":{"code":503,"message":"busy"},"choices":[]}', 503),
    "a 200 page": (200, b"<html>", None),
    "the end of a stream alone": (200, b"[DONE]", None),
    "no choices": (200, b'{"model":"m"}', None),
    "choices of the wrong shape": (200, b'{"choices":["x"]}', None),
}


@pytest.mark.parametrize(("status", "raw", "reported"), BODIES.values(), ids=BODIES.keys())
def test_failed_answer_is_one_error(status: int, raw: bytes, reported: int | None) -> None:
    (event,) = DIALECT.decode_body(status, raw)
    assert isinstance(event, ErrorReported)
    assert event.status == reported


CHUNK: dict[str, list[Any]] = {
    "id": ["a", "b", "", None],
    "object": ["chat.completion", "chat.completion.chunk", "error"],
    "created": [1, 2, 0, 1.0, True, 10**30, None],
    "model": ["m", "other", "", None],
    "choices": [],
    "system_fingerprint": ["fp", "", None],
    "service_tier": ["default", None],
    "usage": [USAGE, {}, None, [1]],
    "obfuscation": ["xyz"],
    "provider": ["its own field"],
    "error": [{"message": "no"}],
}
CHOICE: dict[str, list[Any]] = {
    "index": [0, 1, True, "0"],
    "delta": [],
    "message": [],
    "logprobs": [None, {"content": []}],
    "finish_reason": ["stop", "length", "", None, 5],
    "native_finish_reason": ["end"],
}
MESSAGE: dict[str, list[Any]] = {
    "role": ["assistant", None, 5],
    "content": ["text", "\u00e9\n", "", None, ["part"], "\ud83d"],
    "refusal": [None, "no"],
    "annotations": [[], [{"type": "url_citation"}], None],
    "reasoning": ["because"],
    "tool_calls": [[], [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]],
}


class Chunks:
    """Makes chunks. The values that come first in the tables are likely, as are few fields."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def drawn(self, table: dict[str, list[Any]], likely: float) -> dict[str, Any]:
        drawn = {}
        for place, (name, values) in enumerate(table.items()):
            if self.random.random() < (likely if place < 5 else 0.1):
                unusual = self.random.random() < 0.03
                drawn[name] = values and (self.random.choice(values) if unusual else values[0])
        return drawn

    def chunk(self) -> dict[str, Any]:
        chunk = self.drawn(CHUNK, 0.98)
        if "choices" in chunk:
            chunk["choices"] = [self.choice() for _ in range(self.random.choice((0, 1, 1, 1, 2)))]
        return chunk

    def choice(self) -> dict[str, Any]:
        choice = self.drawn(CHOICE, 0.6)
        for name in ("delta", "message"):
            if name in choice:
                choice[name] = None if self.random.random() < 0.03 else self.drawn(MESSAGE, 0.4)
        return choice


def test_usual_chunks_are_read_as_all_others() -> None:
    """They are decoded in a faster way, with the same events."""
    usual = unusual = 0
    for seed in range(3000):
        chunks, decoder, other = Chunks(seed), ChatDecoder(), ChatDecoder()
        for _ in range(4):
            given = frame(chunks.chunk())
            assert given.data is not None
            events = decoder.read_usual(given.data) if decoder.is_usual else None
            assert other.feed(given) == (decoder.feed(given) if events is None else events), given
            usual, unusual = usual + (events is not None), unusual + (events is None)
    assert min(usual, unusual) > 1000


def test_usual_whole_answers_are_read_as_all_others() -> None:
    class Other(ChatDecoder):
        """The decoder of another dialect: it reads dicts."""

    for seed in range(3000):
        body = json.dumps(Chunks(seed).chunk()).encode()
        assert decode_body(200, body) == decode_body(200, body, Other), body
