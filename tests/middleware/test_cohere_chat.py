"""Asking Cohere, and reading its answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.attempts import Tokens
from headstart.canonical_request import Quirks, WrittenRequest
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import InvalidRequest
from headstart.middleware.reading import SSEDecoder
from headstart.types import Choice, Ended, ErrorReported, Reasoning, StreamEvent, Text, ToolCall
from support.events import folded

DIALECT = COHERE_CHAT
USAGE = {
    "billed_units": {"input_tokens": 1, "output_tokens": 2},
    "tokens": {"input_tokens": 11.0, "output_tokens": 12.0},
    "cached_tokens": 4,
}
CALL = {"id": "f_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def said(kind: str, index: int | None = None, **message: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"type": kind, **place, "delta": {"message": message}}


def end(reason: str, **more: Any) -> dict[str, Any]:
    return {"type": "message-end", "delta": {"finish_reason": reason, **more}}


def events_in(*documents: dict[str, Any]) -> list[StreamEvent]:
    raw = b"".join(
        b"event: %b\ndata: %b\n\n" % (str(each.get("type")).encode(), json.dumps(each).encode())
        for each in documents
    )
    decoder = DIALECT.decoder()
    return [each for frame in SSEDecoder().feed(raw) for each in decoder.feed(frame)]


def choice_of(events: Any) -> Choice:
    (choice,) = folded(events).choices
    return choice


def written(**fields: Any) -> WrittenRequest:
    document = {"model": "command-a", "messages": [{"role": "user", "content": "Hi"}], **fields}
    openai = OPENAI_CHAT
    asked = openai.read_request(openai.parse_request(json.dumps(document).encode()))
    return DIALECT.write_request(asked, Quirks())


def test_a_streamed_answer_and_a_whole_one_say_the_same() -> None:
    citation = {"start": 0, "end": 2, "text": "So"}
    streamed = events_in(
        {"type": "message-start", "id": "i", "delta": {"message": {"role": "assistant"}}},
        said("tool-plan-delta", tool_plan="I will "),
        said("tool-plan-delta", tool_plan="look."),
        said("content-start", 0, content={"type": "thinking", "thinking": ""}),
        said("content-delta", 0, content={"thinking": "Hm."}),
        said("content-start", 1, content={"type": "text", "text": ""}),
        said("content-delta", 1, content={"text": "So"}),
        said("content-delta", 1, content={"text": "!"}),
        said("citation-start", 0, citations=citation),
        {"type": "citation-end", "index": 0},
        said("tool-call-start", 0, tool_calls={**CALL, "function": {"name": "f", "arguments": ""}}),
        said("tool-call-delta", 0, tool_calls={"function": {"arguments": '{"a":1}'}}),
        {"type": "tool-call-end", "index": 0},
        end("TOOL_CALL", usage=USAGE),
    )
    message = {
        "tool_plan": "I will look.",
        "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So!"}],
        "tool_calls": [CALL],
        "citations": [citation],
    }
    body = {"id": "i", "message": message, "finish_reason": "TOOL_CALL", "usage": USAGE}
    choice = choice_of(streamed)
    assert choice == choice_of(DIALECT.decode_body(200, json.dumps(body).encode()))
    assert choice.parts == (
        Reasoning(text="I will look.", field="tool_plan"),
        Reasoning(text="Hm.", field="thinking"),
        Text(text="So!"),
        ToolCall(id="f_1", name="f", arguments='{"a":1}'),
    )
    assert (choice.finish, choice.native_finish) == ("tool_calls", "TOOL_CALL")
    assert choice.extra == {"citations": [citation]}


@pytest.mark.parametrize(
    ("native", "reason"),
    [("COMPLETE", "stop"), ("STOP_SEQUENCE", "stop"), ("MAX_TOKENS", "length"), ("NEW", "error")],
)
def test_finish_reasons_keep_their_own_name(native: str, reason: str) -> None:
    start = {"type": "message-start", "id": "i"}
    choice = choice_of(events_in(start, end(native)))
    assert (choice.finish, choice.native_finish) == (reason, native)


@pytest.mark.parametrize("reason", ["ERROR", "TIMEOUT"])
def test_an_answer_that_broke_off_is_an_error(reason: str) -> None:
    events = events_in({"type": "message-start", "id": "i"}, end(reason, error="no capacity"))
    assert ErrorReported(message="no capacity", code=reason) in events


def test_errors_are_read() -> None:
    (error,) = DIALECT.decode_body(429, b'{"id":"1","message":"too many"}')
    assert error == ErrorReported(message="too many", status=429)
    assert DIALECT.decode_body(503, b"<html>") == (
        ErrorReported(message="the provider reported an error", status=503),
    )


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"message":{"tool_calls":[1]}}', b'{"message":{"content":5}}']
)
def test_a_body_that_is_not_an_answer_is_an_error(body: bytes) -> None:
    (error,) = DIALECT.decode_body(200, body)
    assert isinstance(error, ErrorReported)
    assert error.code == "upstream_protocol_error"


def test_events_that_cannot_be_read_are_errors() -> None:
    for raw in (b"data: {\n\n", b"data: []\n\n", b'data: {"type":"tool-call-start"}\n\n'):
        decoder = DIALECT.decoder()
        (frame,) = SSEDecoder().feed(raw)
        (error,) = decoder.feed(frame)
        assert isinstance(error, ErrorReported)
    assert events_in({"type": "debug", "prompt": "…"}) == []


def test_tokens_are_those_that_were_read_and_written() -> None:
    assert DIALECT.tokens(USAGE) == Tokens(11, 12, 4, 0, 0)
    assert DIALECT.tokens({"billed_units": USAGE["billed_units"]}) == Tokens(1, 2, 0, 0, 0)
    assert DIALECT.tokens({"tokens": None}) == Tokens(0, 0, 0, 0, 0)


def test_a_request_is_written_in_its_names() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in ("f", "g")
    ]
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    request = written(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look"}, image]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "f_1", "content": "cold"},
        ],
        tools=tools,
        tool_choice={"type": "function", "function": {"name": "g"}},
        max_completion_tokens=9,
        top_p=0.5,
        stop="END",
        reasoning_effort="none",
        response_format={"type": "json_object"},
        user="u",
    )
    assert (request.path, request.dropped) == (b"/v2/chat", ("user",))
    document = json.loads(request.body)
    assert document["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look"}, image]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "f_1", "content": "cold"},
    ]
    assert [tool["function"]["name"] for tool in document["tools"]] == ["g"]
    settings = {k: v for k, v in document.items() if k not in ("messages", "tools", "model")}
    assert settings == {
        "stream": False,
        "tool_choice": "REQUIRED",
        "max_tokens": 9,
        "p": 0.5,
        "stop_sequences": ["END"],
        "thinking": {"type": "disabled"},
        "response_format": {"type": "json_object"},
    }


def test_images_of_results_follow_the_results_in_a_message_of_the_user() -> None:
    """Its ``tool`` messages hold text alone. Agents send screenshots in results."""
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    results = [
        {
            "type": "tool_result",
            "tool_use_id": id,
            "content": [{"type": "text", "text": "ok"}, {"type": "image", "source": source}],
        }
        for id in "ab"
    ]
    calls = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in "ab"]
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": [*results, {"type": "text", "text": "And now?"}]},
        ],
    }
    asked = ANTHROPIC_MESSAGES.read_request(
        ANTHROPIC_MESSAGES.parse_request(json.dumps(body).encode())
    )
    messages = json.loads(DIALECT.write_request(asked, Quirks()).body)["messages"]
    assert messages[2:4] == [{"role": "tool", "tool_call_id": id, "content": "ok"} for id in "ab"]
    assert [part["type"] for part in messages[4]["content"]] == ["text", "image_url"] * 2
    assert messages[4]["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="
    assert messages[5] == {"role": "user", "content": "And now?"}


BEYOND: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ({"frequency_penalty": 1.5}, {}, ("frequency_penalty",)),
    ({"presence_penalty": -1}, {}, ("presence_penalty",)),
    ({"presence_penalty": 1}, {"presence_penalty": 1}, ()),
    ({"top_k": 501}, {}, ("top_k",)),
    ({"seed": -1}, {}, ("seed",)),
    ({"top_p": 1}, {"p": 0.99}, ()),
    ({"top_p": 0}, {"p": 0.01}, ()),
    ({"stop": list("abcde")}, {"stop_sequences": list("abcde")}, ()),
    ({"logprobs": True, "top_logprobs": 2}, {}, ("logprobs", "top_logprobs")),
]


@pytest.mark.parametrize(("asked", "said", "dropped"), BEYOND)
def test_values_that_cohere_documents_to_refuse_are_not_sent(
    asked: dict[str, Any], said: dict[str, Any], dropped: tuple[str, ...]
) -> None:
    request = written(**asked)
    document = json.loads(request.body)
    assert {k: v for k, v in document.items() if k not in ("model", "messages", "stream")} == said
    assert request.dropped == dropped


def test_no_more_stop_sequences_than_it_takes_are_told() -> None:
    request = written(stop=list("abcdef"))
    assert json.loads(request.body)["stop_sequences"] == list("abcde")
    assert request.dropped == ("stop",)


def test_requests_that_cohere_cannot_express_are_refused() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "aQ==", "format": "wav"}}
    refused: tuple[dict[str, Any], ...] = (
        {"n": 2},
        {"web_search_options": {"search_context_size": "low"}},
        {"web_search_options": {}},
        {"messages": [{"role": "user", "content": [audio]}]},
    )
    for fields in refused:
        with pytest.raises(InvalidRequest):
            written(**fields)


_NAMES = [
    "id",
    "type",
    "delta",
    "message",
    "content",
    "index",
    "text",
    "thinking",
    "tool_calls",
    "function",
]
_KINDS = st.sampled_from(["message-start", "content-delta", "tool-call-start", "message-end", ""])
_ANYTHING = st.recursive(
    st.none() | st.integers() | _KINDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(event=st.dictionaries(st.sampled_from(_NAMES), _ANYTHING), kind=_KINDS)
def test_reading_never_raises(event: dict[str, Any], kind: str) -> None:
    events_in({**event, "type": kind})
    events = DIALECT.decode_body(200, json.dumps(event).encode())
    assert isinstance(events[-1], Ended | ErrorReported)
