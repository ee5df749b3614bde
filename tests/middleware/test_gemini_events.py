"""Reading Gemini's answers, streamed or whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.attempts import Tokens
from headstart.dialects.dialect import Frame
from headstart.dialects.gemini_answers import GenerateDecoder, retry_delay_s
from headstart.reply import Transcript
from headstart.types import (
    CONTENT_BLOCKS,
    Ended,
    ErrorReported,
    Finished,
    Reasoning,
    Text,
    ToolCall,
    UsageReported,
)
from support.gemini_stream import DIALECT, USAGE, chunk, collected, event, events_in

TEXT = {"text": "Hello"}
SIGNED = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}


def whole(*parts: dict[str, Any], **beside: Any) -> bytes:
    content = {"parts": parts, "role": "model"}
    answer = {"content": content, "finishReason": "STOP", "index": 0, **beside}
    return json.dumps({"candidates": [answer], "modelVersion": "m", "responseId": "r1"}).encode()


def test_texts_of_a_stream_go_on_and_its_last_usage_stands() -> None:
    raw = chunk(TEXT) + chunk({"text": " there"}) + chunk({"text": ""}, finish="STOP")
    completion = collected(events_in(raw))
    (choice,) = completion.choices
    assert choice.parts == (Text(text="Hello there"),)
    assert (choice.finish, choice.native_finish) == ("stop", "STOP")
    assert completion.usage == USAGE
    assert completion.model == "gemini-2.5-flash"


def test_each_chunk_replaces_the_usage_before() -> None:
    events = events_in(chunk(TEXT) + chunk(finish="STOP"))
    assert [each.usage for each in events if isinstance(each, UsageReported)] == [USAGE, USAGE]


def test_the_last_rating_of_each_category_stands() -> None:
    """Each chunk may rate the answer so far."""
    rated = [
        [{"category": name, "probability": how} for name in ("HATE", "HARM")]
        for how in ("LOW", "NEGLIGIBLE")
    ]
    decoder, transcript = GenerateDecoder(), Transcript()
    for ratings, reason in zip(rated, (None, "STOP"), strict=True):
        content = {"content": {"parts": [TEXT]}, "finishReason": reason}
        chunk = {"candidates": [{**content, "safetyRatings": ratings}]}
        transcript.feed(decoder.read(chunk, None))
    (choice,) = collected([*transcript.events, Ended()]).choices
    assert choice.beside == {"safetyRatings": rated[-1]}


def test_a_stream_is_finished_only_by_the_reason_of_every_candidate() -> None:
    transcript, decoder = Transcript(), GenerateDecoder()
    two = [{"index": n, "content": {"parts": [TEXT]}} for n in (0, 1)]
    ends = [{"index": n, "finishReason": "STOP"} for n in (0, 1)]
    finished = []
    for candidates in (two, ends[:1], ends[1:]):
        transcript.feed(decoder.read({"candidates": candidates}, None))
        finished.append(transcript.finished)
    assert finished == [False, False, True]


def test_thoughts_are_reasoning_with_their_signature() -> None:
    thought = {"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"}
    parts = collected(events_in(chunk(thought) + chunk(TEXT, finish="STOP"))).choices[0].parts
    assert parts == (Reasoning(text="Hm.", field="thought", signature="c2ln"), Text(text="Hello"))


def test_an_answer_that_calls_a_function_finishes_for_that() -> None:
    (choice,) = collected(events_in(chunk(SIGNED) + chunk({"text": ""}, finish="STOP"))).choices
    (call,) = choice.parts
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("f", '{"a":1}')
    assert call.extra == {"thoughtSignature": "c2ln"}
    assert (choice.finish, choice.native_finish) == ("tool_calls", "STOP")


def test_ids_of_calls_are_the_same_whenever_they_are_read_and_differ_within_an_answer() -> None:
    raw = chunk(SIGNED, SIGNED, finish="STOP")
    first, again = collected(events_in(raw)), collected(events_in(raw))
    assert first == again
    one, two = first.choices[0].parts
    assert isinstance(one, ToolCall)
    assert isinstance(two, ToolCall)
    assert one.id != two.id
    own = {"functionCall": {"id": "mine", "name": "f", "args": {}}}
    (named,) = collected(events_in(chunk(own, finish="STOP"))).choices[0].parts
    assert isinstance(named, ToolCall)
    assert named.id == "mine"


def test_a_call_that_comes_in_pieces_is_told_whole() -> None:
    pieces: list[dict[str, Any]] = [
        {"name": "f", "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.city", "stringValue": "New ", "willContinue": True}]},
        {"partialArgs": [{"jsonPath": "$.city", "stringValue": "York"}]},
        {"partialArgs": [{"jsonPath": "$.days[1].hot", "boolValue": True}]},
        {"partialArgs": [{"jsonPath": "$['a b']", "nullValue": "NULL_VALUE"}]},
        {"partialArgs": [{"jsonPath": "$.count", "numberValue": 2}]},
    ]
    chunks = [chunk({"functionCall": {"willContinue": True, **piece}}) for piece in pieces]
    chunks += [chunk({"functionCall": {}}), chunk(finish="STOP")]
    (call,) = collected(events_in(b"".join(chunks))).choices[0].parts
    assert isinstance(call, ToolCall)
    assert call.name == "f"
    assert json.loads(call.arguments) == {
        "city": "New York",
        "days": [None, {"hot": True}],
        "a b": None,
        "count": 2,
    }


def test_a_call_whose_last_piece_is_missing_is_told_at_the_end() -> None:
    piece = {"name": "f", "args": {"a": 1}, "willContinue": True}
    raw = chunk({"functionCall": piece}) + chunk(finish="STOP")
    (call,) = collected(events_in(raw)).choices[0].parts
    assert isinstance(call, ToolCall)
    assert (call.name, json.loads(call.arguments)) == ("f", {"a": 1})


@pytest.mark.parametrize("path", ["", "city", "$.", "$[0]", "$.a[99999999]", "$.a..b", "$x"])
def test_a_piece_that_stands_nowhere_is_an_error(path: str) -> None:
    call = {"name": "f", "partialArgs": [{"jsonPath": path, "stringValue": "x"}]}
    events = events_in(chunk({"functionCall": {"willContinue": True, **call}}))
    assert [each.code for each in events if isinstance(each, ErrorReported)] == [
        "upstream_protocol_error"
    ]


def test_parts_of_other_kinds_are_kept_as_they_came() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
    image = {"inlineData": {"mimeType": "image/png", "data": "aQ=="}}
    (choice,) = collected(events_in(chunk(code, TEXT, image, finish="STOP"))).choices
    assert choice.extra[CONTENT_BLOCKS] == [
        {"index": 0, "type": "executableCode", "part": code},
        {"index": 2, "type": "inlineData", "part": image},
    ]


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("MAX_TOKENS", "length"),
        ("CONTINUATION", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("MISSING_THOUGHT_SIGNATURE", "error"),
        ("OF_TOMORROW", "error"),
    ],
)
def test_finish_reasons_keep_their_own_name(native: str, reason: str) -> None:
    finishes = [e for e in events_in(chunk(TEXT, finish=native)) if isinstance(e, Finished)]
    assert finishes == [Finished(reason=reason, native=native)]


def test_a_refused_prompt_is_an_answer_without_content() -> None:
    raw = event(promptFeedback={"blockReason": "PROHIBITED_CONTENT"})
    transcript = Transcript()
    transcript.feed(events_in(raw))
    assert transcript.finished
    assert not transcript.content_started
    completion = collected(events_in(raw))
    assert completion.choices[0].native_finish == "PROHIBITED_CONTENT"
    assert completion.choices[0].finish == "content_filter"


def test_a_note_on_a_prompt_that_was_not_refused_ends_nothing() -> None:
    raw = event(promptFeedback={"safetyRatings": []}) + chunk(TEXT, finish="STOP")
    answer = collected(events_in(raw))
    assert answer.choices[0].finish == "stop"
    (told,) = json.loads(DIALECT.write_body(answer, "r1", 1))["candidates"]
    assert told["finishReason"] == "STOP"


def test_an_error_inside_a_stream_is_read() -> None:
    body = {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}
    raw = b"data: %b\r\n\r\n" % json.dumps(body).encode()
    assert events_in(chunk(TEXT) + raw)[-1] == ErrorReported(
        message="Overloaded", code="UNAVAILABLE", status=503
    )


def test_error_bodies_are_read_with_their_delay() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [{}, detail]}}
    for raw in (json.dumps(body), json.dumps([body])):
        (error,) = DIALECT.decode_body(429, raw.encode())
        assert isinstance(error, ErrorReported)
        assert (error.status, error.code) == (429, "RESOURCE_EXHAUSTED")
    assert retry_delay_s(body) == 34.5


@pytest.mark.parametrize("delay", ["soon", "-1s", "infs", "nans", 3, None])
def test_an_invalid_delay_is_left_out(delay: Any) -> None:
    assert retry_delay_s({"error": {"details": [{"retryDelay": delay}]}}) is None


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"null", b"\xff", b'{"candidates":{}}', b'{"candidates":[7]}']
)
def test_a_body_that_is_not_an_answer_is_an_error(body: bytes) -> None:
    (error,) = DIALECT.decode_body(200, body)
    assert isinstance(error, ErrorReported)
    assert error.code == "upstream_protocol_error"


_NAMES = [
    "candidates",
    "content",
    "parts",
    "text",
    "thought",
    "thoughtSignature",
    "functionCall",
    "name",
    "args",
    "partialArgs",
    "jsonPath",
    "stringValue",
    "willContinue",
    "finishReason",
    "index",
    "promptFeedback",
    "blockReason",
    "error",
    "usageMetadata",
    "logprobsResult",
    "modelVersion",
    "responseId",
]
_WORDS = st.sampled_from(["", "$.a", "$.a[0]", "STOP", "SAFETY", "r1"])
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | _WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=5)
    ),
    max_leaves=30,
)
_PARTS = st.lists(_ANYTHING | st.dictionaries(st.sampled_from(_NAMES), _ANYTHING), max_size=3)


@given(parts=_PARTS, rest=st.dictionaries(st.sampled_from(_NAMES), _ANYTHING, max_size=4))
def test_reading_and_replaying_never_raise(parts: list[Any], rest: dict[str, Any]) -> None:
    candidate = {"content": {"parts": parts}, "finishReason": "STOP"}
    document = {"candidates": [candidate], **rest}
    events = DIALECT.decode_body(200, json.dumps(document).encode())
    assert isinstance(events[-1], Ended | ErrorReported)
    decoder = GenerateDecoder()
    transcript = Transcript()
    for _ in range(2):
        transcript.feed(decoder.feed(Frame(b"", json.dumps(document).encode(), None)))
    transcript.feed((Ended(),))
    completion = transcript.completion(now=0)
    if completion is not None:
        rendered = DIALECT.render(completion)
        json.loads(rendered.json("r", 0))
        events_in(rendered.sse("r", 0, include_usage=True))


def test_texts_of_a_whole_answer_stay_apart() -> None:
    events = DIALECT.decode_body(200, whole(TEXT, {"text": " there"}))
    assert events[-1] == Ended()
    assert collected(events).choices[0].parts == (Text(text="Hello"), Text(text=" there"))


def test_the_chunks_of_a_stream_may_come_as_one_list() -> None:
    chunks = [
        {"candidates": [{"content": {"parts": [TEXT]}}]},
        {"candidates": [{"content": {"parts": [{"text": " there"}]}, "finishReason": "STOP"}]},
        {"usageMetadata": USAGE},
    ]
    completion = collected(DIALECT.decode_body(200, json.dumps(chunks).encode()))
    (choice,) = completion.choices
    assert choice.parts == (Text(text="Hello there"),)
    assert (choice.finish, completion.usage) == ("stop", USAGE)
    (error,) = DIALECT.decode_body(200, json.dumps([chunks[0], 1]).encode())
    assert isinstance(error, ErrorReported)


def test_tokens_count_thoughts_as_written_and_tools_as_read() -> None:
    usage = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 4,
        "cachedContentTokenCount": 8,
    }
    assert DIALECT.tokens(usage) == Tokens(15, 7, 8, 0, 4)
    assert DIALECT.tokens(DIALECT.usage(DIALECT.tokens(usage))) == Tokens(15, 7, 8, 0, 4)
