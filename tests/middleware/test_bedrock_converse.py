"""Asking Bedrock's Converse, and reading its answers."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from headstart.canonical_request import Quirks, WrittenRequest
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.bedrock_converse import BEDROCK_CONVERSE, MessageCutter
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import InvalidRequest, UpstreamProtocolError
from headstart.middleware.reading import EventStream
from headstart.types import Ended, ErrorReported, Reasoning, StreamEvent, Text, TextDelta, ToolCall
from support.aws_events import encode_message
from support.events import folded

if TYPE_CHECKING:
    from collections.abc import Iterator

DIALECT = BEDROCK_CONVERSE
PNG = "data:image/png;base64,iVBORw0KGgo="
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
USAGE = {
    "inputTokens": 10,
    "outputTokens": 5,
    "totalTokens": 45,
    "cacheReadInputTokens": 20,
    "cacheWriteInputTokens": 10,
}


def written(quirks: Quirks | None = None, **fields: Any) -> WrittenRequest:
    document = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    asked = OPENAI_CHAT.read_request(OPENAI_CHAT.parse_request(json.dumps(document).encode()))
    return DIALECT.write_request(asked, quirks or Quirks())


def body(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written(**fields).body)
    return found


def message(kind: str, **payload: Any) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return encode_message(headers, json.dumps({**payload, "p": "abcdefghij"}).encode())


def delta(block: int, **said: Any) -> bytes:
    return message("contentBlockDelta", contentBlockIndex=block, delta=said)


def exception(kind: str, text: str) -> bytes:
    headers = {":exception-type": kind, ":message-type": "exception"}
    return encode_message(headers, json.dumps({"message": text}).encode())


STREAM = [
    message("messageStart", role="assistant"),
    delta(0, reasoningContent={"text": "Hm."}),
    delta(0, reasoningContent={"signature": "c2ln"}),
    message("contentBlockStop", contentBlockIndex=0),
    delta(1, text="Hel"),
    delta(1, text="lo"),
    message("contentBlockStop", contentBlockIndex=1),
    message(
        "contentBlockStart",
        contentBlockIndex=2,
        start={"toolUse": {"toolUseId": "t1", "name": "look"}},
    ),
    delta(2, toolUse={"input": '{"a"'}),
    delta(2, toolUse={"input": ":1}"}),
    message("contentBlockStop", contentBlockIndex=2),
    message("somethingNew", x=1),
    message("messageStop", stopReason="tool_use"),
    message("metadata", usage=USAGE, metrics={"latencyMs": 9}),
]
WHOLE = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
                {"text": "Hello"},
                {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"a": 1}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": USAGE,
    "metrics": {"latencyMs": 9},
}
PARTS = (
    Reasoning(text="Hm.", field="reasoningContent", signature="c2ln"),
    Text(text="Hello"),
    ToolCall(id="t1", name="look", arguments='{"a":1}'),
)


def read(*pieces: bytes) -> list[StreamEvent]:
    stream = EventStream(DIALECT, join_texts=False)
    return [event for piece in pieces for _, found in stream.feed(piece) for event in found]


def check(events: Any) -> None:
    completion = folded(events)
    (choice,) = completion.choices
    assert choice.parts == PARTS
    assert (choice.finish, choice.native_finish) == ("tool_calls", "tool_use")
    assert completion.usage == USAGE
    counted = DIALECT.tokens(USAGE)
    assert (counted.prompt, counted.completion) == (40, 5)
    assert (counted.cached, counted.cache_write, counted.hour_write) == (20, 10, 0)
    lives = [{"ttl": "1h", "inputTokens": 6}, {"ttl": "5m", "inputTokens": 4}, None]
    assert DIALECT.tokens({**USAGE, "cacheDetails": lives}) == replace(counted, hour_write=6)


def test_a_whole_answer_is_read() -> None:
    events = DIALECT.decode_body(200, json.dumps(WHOLE).encode())
    assert isinstance(events[-1], Ended)
    check(events)


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_a_stream_is_read_however_it_arrives(size: int) -> None:
    whole = b"".join(STREAM)
    events = read(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert isinstance(events[-1], Ended)
    check(events)


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("guardrail_intervened", "content_filter"),
        ("malformed_tool_use", "error"),
        ("something_new", "error"),
    ],
)
def test_the_reason_of_the_end_is_translated(native: str, reason: str) -> None:
    (event,) = read(message("messageStop", stopReason=native))
    assert (getattr(event, "reason", ""), getattr(event, "native", "")) == (reason, native)


@pytest.mark.parametrize(
    ("kind", "status"),
    [("throttlingException", 429), ("modelStreamErrorException", 424), ("newException", 500)],
)
def test_an_exception_in_a_stream_is_an_error(kind: str, status: int) -> None:
    assert read(*STREAM[:1], exception(kind, "no"))[-1] == ErrorReported(
        message="no", status=status, code=kind
    )


@pytest.mark.parametrize("headers", [{}, {":event-type": "later", ":message-type": "event"}])
@pytest.mark.parametrize("payload", [b"", b"no JSON", b"[1]", b"\xff"])
def test_an_event_yet_unknown_says_nothing_whatever_it_holds(
    headers: dict[str, str], payload: bytes
) -> None:
    unknown = encode_message(headers, payload)
    between = [piece for each in STREAM for piece in (each, unknown)]
    assert read(*between) == read(*STREAM)


def test_an_error_has_the_status_of_its_answer() -> None:
    (event,) = DIALECT.decode_body(400, b'{"message": "The model is wrong"}')
    assert event == ErrorReported(message="The model is wrong", status=400)
    (event,) = DIALECT.decode_body(403, b'{"__type":"a#UnknownKey","Message":"x"}')
    assert event == ErrorReported(message="x", status=403, code="UnknownKey")
    (event,) = DIALECT.decode_body(500, b"<html>")
    assert isinstance(event, ErrorReported)


@pytest.mark.parametrize(
    "raw",
    [b"{}", b"[]", b'{"output": {"message": {"content": [3]}}, "stopReason": "end_turn"}'],
)
def test_a_body_that_is_not_an_answer_is_an_error(raw: bytes) -> None:
    (event,) = DIALECT.decode_body(200, raw)
    assert isinstance(event, ErrorReported)
    assert isinstance(read(message("contentBlockDelta", delta={"text": "x"}))[0], ErrorReported)


def test_cited_texts_are_said_and_what_has_no_text_is_not() -> None:
    cited = {"citationsContent": {"content": [{"text": "It "}, {}, {"text": "is."}]}}
    answer = {"output": {"message": {"content": [cited]}}, "stopReason": "end_turn"}
    events = DIALECT.decode_body(200, json.dumps(answer).encode())
    said = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(said) == "It is."


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a document with each of its keys."""
    for key, inner in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


@pytest.mark.parametrize("damage", [None, True, 5, "text", [], {}, [None], {"text": 1}], ids=repr)
def test_an_answer_that_is_damaged_anywhere_is_read_or_is_an_error(damage: Any) -> None:
    cited = {"citationsContent": {"content": [{"text": "x"}]}}
    whole = json.loads(json.dumps(WHOLE))
    whole["output"]["message"]["content"].append(cited)
    for container, key in places(whole):
        kept, container[key] = container[key], damage
        events = DIALECT.decode_body(200, json.dumps(whole).encode())
        assert isinstance(events[-1], Ended | ErrorReported)
        container[key] = kept


@pytest.mark.parametrize(
    "headers",
    [b"\x05:a", b"\x01a", b"\x01a\x07\x00", b"\x01a\x07\x00\x05abc", b"\x01a\x63\x00\x09"],
)
def test_headers_that_end_too_early_are_an_error(headers: bytes) -> None:
    prelude = struct.pack(">II", 16 + len(headers), len(headers))
    prelude += struct.pack(">I", zlib.crc32(prelude))
    raw = prelude + headers
    with pytest.raises(UpstreamProtocolError, match="headers"):
        read(raw + struct.pack(">I", zlib.crc32(raw)))


def test_the_model_stands_in_the_path() -> None:
    arn = "arn:aws:bedrock:us-east-1:1:inference-profile/x"
    assert written(model="a.b-v1:0").path == b"/model/a.b-v1%3A0/converse"
    assert written(model=arn, stream=True).path == (
        b"/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fx/converse-stream"
    )


def test_a_conversation_is_written() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What?"}, image(PNG)]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c.1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c.1", "content": "seen"},
        {"role": "user", "content": "And?"},
    ]
    assert body(messages=messages, tools=[TOOL], max_tokens=7, stop="x", temperature=0) == {
        "system": [{"text": "Be brief."}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"text": "What?"},
                    {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
                ],
            },
            {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "c_1", "name": "look", "input": {}}}],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "c_1", "content": [{"text": "seen"}]}},
                    {"text": "And?"},
                ],
            },
        ],
        "inferenceConfig": {"maxTokens": 7, "temperature": 0, "stopSequences": ["x"]},
        "toolConfig": {
            "tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}]
        },
    }


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts) or "Hi"}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def sound(kind: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": "iVBO", "format": kind}}


def file(kind: str, name: str = "x") -> dict[str, Any]:
    data = f"data:{kind};base64,iVBO"
    return {"type": "file", "file": {"filename": name, "file_data": data}}


@pytest.mark.parametrize(
    ("choice", "written_choice"),
    [
        ("auto", None),
        ("required", {"any": {}}),
        ({"type": "function", "function": {"name": "look"}}, {"tool": {"name": "look"}}),
    ],
)
def test_the_choice_of_a_tool_is_written(choice: Any, written_choice: Any) -> None:
    config = body(tools=[TOOL], tool_choice=choice)["toolConfig"]
    assert config.get("toolChoice") == written_choice


def test_a_choice_of_no_tool_leaves_the_tools_out() -> None:
    assert "toolConfig" not in body(tools=[TOOL], tool_choice="none")


def test_a_schema_and_an_effort_go_to_the_output() -> None:
    closed = {"type": "object", "additionalProperties": False}
    schema = {"name": "trip", "schema": closed}
    found = body(
        response_format={"type": "json_schema", "json_schema": schema}, reasoning_effort="low"
    )
    structure = {
        "jsonSchema": {"schema": '{"type":"object","additionalProperties":false}', "name": "trip"}
    }
    assert found["outputConfig"] == {
        "textFormat": {"type": "json_schema", "structure": structure},
        "effort": "low",
    }


def test_a_mark_of_the_prefix_cache_travels() -> None:
    text = {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    document = {
        "model": "m",
        "max_tokens": 5000,
        "system": [text],
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "messages": [{"role": "user", "content": "Hi"}],
    }
    asked = ANTHROPIC_MESSAGES.read_request(
        ANTHROPIC_MESSAGES.parse_request(json.dumps(document).encode())
    )
    found = json.loads(DIALECT.write_request(asked, Quirks()).body)
    assert found["system"] == [{"text": "Long."}, {"cachePoint": {"type": "default", "ttl": "1h"}}]
    kept = json.loads(DIALECT.write_request(asked, Quirks(drops=("cachePoint",))).body)
    assert kept["system"] == [{"text": "Long."}]
    thinking = {"type": "enabled", "budget_tokens": 2048}
    assert found["additionalModelRequestFields"] == {"thinking": thinking}


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("^n:", {"n": 2}),
        ("by URL", {"messages": [{"role": "user", "content": [image("https://a.org/b.png")]}]}),
        ("json_object", {"response_format": {"type": "json_object"}}),
        (r"image \(image/bmp\)", {"messages": [user(image("data:image/bmp;base64,iVBORw0KGgo="))]}),
        (r"audio \(audio/x\)", {"messages": [user(sound("x"))]}),
        (r"file \(font/otf\)", {"messages": [user(file("font/otf"))]}),
    ],
)
def test_content_that_bedrock_refuses_is_refused(message: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=message):
        written(**fields)


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (image("data:image/jpg;base64,iVBO"), {"image": {"format": "jpeg"}}),
        (sound("wav"), {"audio": {"format": "wav"}}),
        (sound("mp3"), {"audio": {"format": "mp3"}}),
        (file("text/csv", "a_b:c.csv"), {"document": {"format": "csv", "name": "a b c csv"}}),
        (file("application/pdf", "\u2026"), {"document": {"format": "pdf", "name": "document"}}),
    ],
)
def test_media_are_written_in_the_formats_of_bedrock(
    part: dict[str, Any], block: dict[str, Any]
) -> None:
    ((kind, fields),) = block.items()
    expected = {kind: {**fields, "source": {"bytes": "iVBO"}}}
    assert body(messages=[user(part)])["messages"][0]["content"] == [expected]


def test_a_tools_result_has_texts_and_pictures_and_no_sound() -> None:
    def asked(part: dict[str, Any]) -> dict[str, Any]:
        called = {"id": "t:1", "type": "function", "function": {"name": "look", "arguments": "["}}
        result = {"role": "tool", "tool_call_id": "t:1", "content": [part]}
        turn = {"role": "assistant", "content": None, "tool_calls": [called]}
        return body(messages=[user(), turn, result])

    _, turn, result = asked(image("data:image/png;base64,iVBO"))["messages"]
    call = {"toolUseId": "t_1", "name": "look", "input": {"_raw": "["}}
    assert turn["content"] == [{"toolUse": call}]
    shown = {"image": {"format": "png", "source": {"bytes": "iVBO"}}}
    assert result["content"] == [{"toolResult": {"toolUseId": "t_1", "content": [shown]}}]
    with pytest.raises(InvalidRequest, match="result of type audio"):
        asked(sound("wav"))


def test_a_system_prompt_alone_is_the_users_turn() -> None:
    found = body(messages=[{"role": "system", "content": "Hi"}])
    assert found["messages"] == [{"role": "user", "content": [{"text": "Hi"}]}]
    assert "system" not in found


def test_the_tools_of_calls_stay_though_none_may_be_called() -> None:
    function = {"name": "look", "arguments": "{}"}
    called = {"id": "t", "type": "function", "function": function}
    turn = {"role": "assistant", "content": None, "tool_calls": [called]}
    result = {"role": "tool", "tool_call_id": "t", "content": "x"}
    found = written(tools=[TOOL], tool_choice="none", messages=[user(), turn, result])
    assert found.dropped == ("tool_choice",)
    assert set(json.loads(found.body)["toolConfig"]) == {"tools"}


def test_fields_that_a_model_refuses_are_dropped_by_name() -> None:
    quirks = Quirks(sampling=False, drops=("toolConfig",))
    found = written(quirks, temperature=1, top_p=0.5, top_k=3, tools=[TOOL], max_tokens=9)
    assert found.dropped == ("temperature", "toolConfig", "top_k", "top_p")
    document = json.loads(found.body)
    assert set(document) == {"messages", "inferenceConfig"}
    assert document["inferenceConfig"] == {"maxTokens": 9}


@pytest.mark.parametrize(("effort", "budget"), [("low", 2048), ("none", None)])
def test_an_effort_is_a_budget_for_models_that_know_no_effort(
    effort: str, budget: int | None
) -> None:
    found = written(Quirks(thinking="budget"), reasoning_effort=effort)
    document = json.loads(found.body)
    thinking = {"type": "enabled", "budget_tokens": budget}
    assert document.get("additionalModelRequestFields", {}) == (
        {} if budget is None else {"thinking": thinking}
    )
    assert found.dropped == (("reasoning",) if budget is None else ())
    assert "outputConfig" not in document


def test_fields_that_only_tune_are_dropped_by_name() -> None:
    found = written(seed=1, presence_penalty=1, user="u", logprobs=True)
    assert found.dropped == ("logprobs", "presence_penalty", "seed", "user")
    assert set(json.loads(found.body)) == {"messages"}
    assert MessageCutter().cut(b"", 0) is None


THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
CALLED = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
]


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"max_tokens": 9000}, 2048),
        ({"max_tokens": 3000, "thinking": {"type": "enabled", "budget_tokens": 3500}}, 1500),
        ({"max_tokens": 1500}, None),
        ({"max_tokens": 9000, "messages": CALLED}, None),
        ({"max_tokens": 9000, "tool_choice": {"type": "any"}}, None),
    ],
)
def test_a_model_thinks_only_where_it_may(fields: dict[str, Any], budget: int | None) -> None:
    tool = {"name": "look", "input_schema": {"type": "object"}}
    document = {"model": "m", "tools": [tool], "messages": CALLED[:1], **THINKING, **fields}
    asked = ANTHROPIC_MESSAGES.read_request(
        ANTHROPIC_MESSAGES.parse_request(json.dumps(document).encode())
    )
    found = DIALECT.write_request(asked, Quirks())
    extra = json.loads(found.body).get("additionalModelRequestFields", {})
    assert extra.get("thinking", {}).get("budget_tokens") == budget
    assert ("reasoning" in found.dropped) == (budget is None)
