"""OpenAI Responses: answers are read, kept, replayed and translated without loss."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import openai.types.responses as api
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.dialect import translate_events
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.dialects.responses_answers import output_items
from headstart.dialects.responses_writing import echo
from headstart.errors import Overloaded
from headstart.middleware.reading import SSEDecoder
from headstart.policies.admission import Admission
from headstart.reply import Transcript
from headstart.types import (
    Choice,
    Completion,
    Ended,
    ErrorReported,
    Finished,
    LogprobsDelta,
    ReasoningDelta,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)
from support.completions import completions
from support.events import crumbled, decoded, encoded, events_of, folded
from support.events import said as told_of
from support.responses import (
    USAGE,
    called,
    event,
    events_in,
    message,
    outputs,
    response,
    said,
    thought,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import StreamEvent

DIALECT = OPENAI_RESPONSES
EVENTS: dict[str, Any] = {
    typing.get_args(each.model_fields["type"].annotation)[0]: each
    for each in typing.get_args(typing.get_args(api.ResponseStreamEvent)[0])
}
"""The SDK's types of events, by their names."""
ECHO = ("metadata", "instructions", "temperature", "top_p")


def completion_of(document: dict[str, Any]) -> Completion:
    return folded(DIALECT.decode_body(200, json.dumps(document).encode()))


def id_of(completion: Completion) -> str:
    return DIALECT.known_id(completion) or "resp_new"


def body_of(completion: Completion, **asked: Any) -> dict[str, Any]:
    """Return a hit for a request with these fields."""
    body = DIALECT.render(completion).json(id_of(completion), 9, echo(asked))
    document: dict[str, Any] = json.loads(body)
    return document


def stream_of(completion: Completion, **asked: Any) -> bytes:
    rendered = DIALECT.render(completion)
    return rendered.sse(id_of(completion), 9, echo(asked), include_usage=True)


UNASKED: dict[str, Any] = {
    **dict.fromkeys(("max_output_tokens", "previous_response_id", "prompt_cache_key", "user")),
    "safety_identifier": None,
    "metadata": {},
    "store": True,
    "top_logprobs": 0,
}
"""What the API says for these fields if the request has none of them."""


@given(outputs)
def test_a_whole_answer_is_replayed_item_for_item(output: list[dict[str, Any]]) -> None:
    document = response(*output)
    replayed = body_of(completion_of(document))
    assert replayed == {**UNASKED, **document, "created_at": 9}


@given(outputs)
def test_a_replayed_stream_reads_back_as_the_same_answer(output: list[dict[str, Any]]) -> None:
    completion = completion_of(response(*output, **UNASKED))
    told = events_in(stream_of(completion))
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert told[-1]["response"]["output"] == output
    done = [each["item"] for each in told if each["type"] == "response.output_item.done"]
    assert done == output, "items end as they are"
    again = folded(decoded(DIALECT, stream_of(completion)))
    assert msgspec.structs.replace(again, created=completion.created) == completion


@given(outputs)
def test_every_event_of_a_replay_is_one_of_the_apis(output: list[dict[str, Any]]) -> None:
    for each in events_in(stream_of(completion_of(response(*output)))):
        EVENTS[each["type"]].model_validate(each)


@given(completions())
def test_an_answer_of_another_dialect_is_told_whole_and_in_order(completion: Completion) -> None:
    first = msgspec.structs.replace(completion, choices=completion.choices[:1], extra={})
    choice = msgspec.structs.replace(first.choices[0], index=0, extra={}, beside={}, logprobs=None)
    first = msgspec.structs.replace(first, choices=(choice,))
    wanted = translated(crumbled(events_of(first)))
    stream = encoded(DIALECT, wanted)
    told = events_in(stream)
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    for each in told:
        EVENTS[each["type"]].model_validate(each)
    again = folded(decoded(DIALECT, stream))
    assert texts_of(again) == texts_of(folded(wanted))
    whole = DIALECT.decode_body(200, DIALECT.write_body(folded(wanted), "id-1", 7))
    assert texts_of(folded(whole)) == texts_of(again)


def translated(events: Sequence[StreamEvent]) -> tuple[StreamEvent, ...]:
    return translate_events(events, OPENAI_CHAT, DIALECT)


def texts_of(completion: Completion) -> tuple[Any, ...]:
    """Return what is said, reasoned, refused and called, in order; joined where it goes on."""
    found: list[list[str]] = []
    for part in completion.choices[0].parts:
        kind = type(part).__name__
        if isinstance(part, ToolCall):
            found.append(["call", part.id, part.name, part.arguments, part.kind])
        elif found and found[-1][0] == kind:
            found[-1][1] += part.text
        else:
            found.append([kind, part.text])
    return tuple(map(tuple, found))


def test_items_events_and_ids_stand_in_their_places() -> None:
    completion = completion_of(
        response(
            thought("Hm.", encrypted_content="gAAA"),
            message(said("Let me see."), phase="commentary"),
            called(),
        )
    )
    events = events_in(stream_of(completion))
    (arguments,) = (each for each in events if each["type"].endswith("arguments.done"))
    assert arguments["name"] == called()["name"]
    told = [each["type"].removeprefix("response.") for each in events]
    assert told == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_an_answer_tells_its_providers_id_and_goes_out_under_any() -> None:
    completion = completion_of(response(message(said("Hi"))))
    assert DIALECT.known_id(completion) == "resp_up"
    told = DIALECT.render(completion).sse("resp_new", 9, include_usage=True)
    ids = {each["response"]["id"] for each in events_in(told) if "response" in each}
    assert ids == {"resp_new"}
    own = Completion(
        model="m", created=1, choices=(Choice(index=0, parts=(Text(text="Hi"),), finish="stop"),)
    )
    assert DIALECT.known_id(own) is None
    rendered = DIALECT.render(own)
    assert json.loads(rendered.json("resp_new", 9))["id"] == "resp_new"
    assert json.loads(rendered.json("resp_new", 9))["created_at"] == 9
    assert b"resp_other" in rendered.sse("resp_other", 9, include_usage=True)
    ids = {item["id"] for item in output_items(own, "seed")}
    assert ids == {"msg_seed00"}


def test_a_hit_repeats_its_own_request_and_not_another_ones() -> None:
    asked: dict[str, Any] = {"metadata": {"who": "ann"}, "user": "ann", "safety_identifier": "ann"}
    asked |= {"prompt_cache_key": "ann", "max_output_tokens": 50, "store": False}
    asked |= {"previous_response_id": "resp_ann", "top_logprobs": 2}
    kept = completion_of(response(message(said("Hi")), **asked))
    mine = {"metadata": {"who": "bob"}, "user": "bob", "store": False}
    for own, told in (({}, UNASKED), (mine, {**UNASKED, **mine}), (asked, asked)):
        replayed = body_of(kept, **own)
        assert {name: replayed[name] for name in UNASKED} == told
        assert replayed["instructions"] == "Be brief."
        streamed = [json.loads(f.data or b"") for f in SSEDecoder().feed(stream_of(kept, **own))]
        responses = [event["response"] for event in streamed if "response" in event]
        assert len(responses) == 3
        assert all({name: each[name] for name in UNASKED} == told for each in responses)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (response(message(said("Hi"))), None),
        (response(thought("Hm."), message(said("Hi"))), None),
        (response(called()), "tool-calls"),
        (response(message(said("Hi")), called()), "tool-calls"),
        (response({"type": "web_search_call", "id": "w"}, message(said("Hi"))), "hosted-tools"),
        (
            response(message(said("Hi", annotations=[{"type": "url_citation", "url": "u"}]))),
            "hosted-tools",
        ),
        (response(message({"type": "refusal", "refusal": "No."})), "refusal"),
        (response(message(said(" "))), "empty"),
        (
            response(
                message(said("Hi")),
                status="incomplete",
                incomplete_details={"reason": "max_output_tokens"},
            ),
            "length",
        ),
        (
            response(
                message(said("Hi")),
                status="incomplete",
                incomplete_details={"reason": "content_filter"},
            ),
            "content-filter",
        ),
        (
            response(
                message(said("Hi")), status="incomplete", incomplete_details={"reason": "steered"}
            ),
            "unclean-finish",
        ),
        (response(message(said("Hi")), moderation={"output": {"flagged": True}}), "moderation"),
    ],
)
def test_answers_follow_the_rules_of_admission(answer: dict[str, Any], reason: str | None) -> None:
    request = DIALECT.parse_request(b'{"model":"m","input":"Hi"}')
    assert Admission().refuse_store(request, completion_of(answer)) == reason


def test_an_answer_that_fails_its_schema_is_not_kept() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    body = {
        "model": "m",
        "input": "Hi",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
    }
    request = DIALECT.parse_request(json.dumps(body).encode())
    kept = [
        Admission().refuse_store(request, completion_of(response(message(said(words)))))
        for words in ('{"a":1}', '{"b":1}')
    ]
    assert kept == [None, "broken-format"]


# --- reading streams -------------------------------------------------------------------------

BEGUN = event("response.created", 0, response=response(status="in_progress", usage=None))
AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
ADDED = event("response.output_item.added", 1, output_index=0, item=message(status="in_progress"))


def completed(*output: dict[str, Any], **more: Any) -> bytes:
    return event("response.completed", 9, response=response(*output, **more))


def test_texts_that_no_delta_told_are_read_at_the_end() -> None:
    whole = message(said("Hi"), id="msg_1")
    delta = event("response.output_text.delta", 2, **AT, delta="Hi", logprobs=[])
    done = event("response.output_text.done", 3, **AT, text="Hi", logprobs=[])
    over = event("response.output_item.done", 4, output_index=0, item=whole)
    streams = [
        BEGUN + ADDED + delta + done + over + completed(whole),
        BEGUN + ADDED + done + over + completed(whole),
        BEGUN + over + completed(whole),
        BEGUN + completed(whole),
        completed(whole),
    ]
    answers = [folded(decoded(DIALECT, stream)) for stream in streams]
    assert all(answer == answers[0] for answer in answers)
    assert body_of(answers[0])["output"] == [whole]


@pytest.mark.parametrize("numbers", [(1, 2), (0, 0), (0, 10**12), (-1, 5)])
def test_items_that_events_number_wrongly_are_not_told_twice(numbers: tuple[int, int]) -> None:
    whole = [message(said("Hi"), id="msg_1"), called()]
    told = [
        event(f"response.output_item.{step}", 4, output_index=number, item=item)
        for number, item in zip(numbers, whole, strict=True)
        for step in ("added", "done")
    ]
    answer = folded(decoded(DIALECT, BEGUN + b"".join(told) + completed(*whole)))
    assert told_of(answer.choices[0]) == [("text", "Hi"), ("call", "call_1", "f", '{"a":1}')]


def test_calls_that_no_delta_told_are_read_at_the_end() -> None:
    opening = called(arguments="", status="in_progress")
    added = event("response.output_item.added", 1, output_index=0, item=opening)
    at = {"item_id": "fc_1", "output_index": 0}
    deltas = [
        event("response.function_call_arguments.delta", n, **at, delta=piece)
        for n, piece in enumerate(('{"a"', ":1}"), 2)
    ]
    over = event("response.output_item.done", 4, output_index=0, item=called())
    for middle in (b"".join(deltas), b""):
        answer = folded(decoded(DIALECT, BEGUN + added + middle + over + completed(called())))
        assert told_of(answer.choices[0]) == [("call", "call_1", "f", '{"a":1}')]
        assert answer.choices[0].finish == "tool_calls"


def test_arguments_sent_as_an_object_become_text() -> None:
    call = called(arguments={"a": 1})
    done = event(
        "response.function_call_arguments.done",
        1,
        item_id="fc_1",
        output_index=0,
        arguments={"a": 1},
    )
    answers = [
        completion_of(response(call)),
        folded(decoded(DIALECT, BEGUN + completed(call))),
        folded(decoded(DIALECT, BEGUN + done + completed(call))),
    ]
    for answer in answers:
        assert told_of(answer.choices[0]) == [("call", "call_1", "f", '{"a":1}')]
    assert body_of(answers[0])["output"] == [called(arguments='{"a":1}')]


def test_events_of_hosted_tools_say_nothing_and_their_items_stay() -> None:
    item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {}}
    stream = BEGUN + event("response.output_item.added", 1, output_index=0, item=item)
    stream += event("response.web_search_call.searching", 2, output_index=0, item_id="ws_1")
    stream += event("response.output_item.done", 3, output_index=0, item=item)
    answer = folded(decoded(DIALECT, stream + completed(item, message(said("Hi")))))
    assert body_of(answer)["output"] == [item, message(said("Hi"))]


@pytest.mark.parametrize(
    ("told", "code", "status"),
    [
        (event("error", 3, code="server_error", message="Oops.", param=None), "server_error", 500),
        (
            event("error", 3, error={"code": "rate_limit_exceeded", "message": "Oops."}),
            "rate_limit_exceeded",
            429,
        ),
        (
            event(
                "response.failed",
                3,
                response=response(
                    status="failed", error={"code": "invalid_prompt", "message": "Oops."}
                ),
            ),
            "invalid_prompt",
            400,
        ),
        (event("error", 3, code=None, message="Oops."), None, None),
    ],
)
def test_errors_are_read_in_every_form(told: bytes, code: str | None, status: int | None) -> None:
    (error,) = [e for e in decoded(DIALECT, BEGUN + told) if isinstance(e, ErrorReported)]
    assert (error.message, error.code, error.status) == ("Oops.", code, status)


def test_a_failed_body_of_status_200_is_an_error() -> None:
    failed = response(status="failed", error={"code": "server_error", "message": "Oops."})
    (error,) = DIALECT.decode_body(200, json.dumps(failed).encode())
    assert error == ErrorReported(message="Oops.", code="server_error", status=500)


def test_errors_are_told_where_old_and_new_clients_look() -> None:
    (told,) = events_in(DIALECT.error_frame(Overloaded("Later."), "01H"))
    assert told["message"] == told["error"]["message"] == "Later."
    assert told["error"]["request_id"] == "01H"
    EVENTS["error"].model_validate(told)


def test_an_event_cut_before_an_error_does_not_swallow_it() -> None:
    cut = b'event: response.output_text.delta\ndata: {"type"'
    stream = BEGUN + cut + b"\n" + DIALECT.error_frame(Overloaded("Later."), "01H")
    assert isinstance(decoded(DIALECT, stream)[-1], ErrorReported)


# --- writing streams -------------------------------------------------------------------------


def write(*events: StreamEvent) -> list[dict[str, Any]]:
    return events_in(encoded(DIALECT, (Started(model="m"), *events, Ended())))


def test_calls_told_by_turns_keep_their_places() -> None:
    told = write(
        ToolCallDelta(index=0, id="a", name="f", arguments='{"x"'),
        ToolCallDelta(index=1, id="b", name="g", arguments="{"),
        ToolCallDelta(index=0, arguments=":1}"),
        ToolCallDelta(index=1, arguments="}"),
        Finished(reason="tool_calls"),
    )
    output = told[-1]["response"]["output"]
    assert [(item["call_id"], item["arguments"]) for item in output] == [
        ("a", '{"x":1}'),
        ("b", "{}"),
    ]
    deltas = [each for each in told if each["type"].endswith(".delta")]
    assert [each["output_index"] for each in deltas] == [0, 1, 0, 1]
    assert [each["item_id"] for each in deltas[:2]] == [item["id"] for item in output]


def test_calls_without_ids_get_ids_of_their_own() -> None:
    told = [ToolCallDelta(index=n, name=name, arguments="{}") for n, name in enumerate("ab")]
    ended = (Finished(reason="tool_calls"), Ended())
    whole = body_of(folded((Started(model="m"), *told, *ended)))
    streamed = write(*told, *ended)[-1]["response"]
    for answer in (whole, streamed):
        ids = [item["call_id"] for item in answer["output"]]
        assert len(set(ids)) == 2
        assert all(ids)


def test_reasoning_under_a_name_that_nobody_asked_for_is_left_out() -> None:
    told = write(
        ReasoningDelta(text="Hm.", field="reasoning_content"),
        TextDelta(text="Hi"),
        Finished(reason="stop"),
    )
    assert [item["type"] for item in told[-1]["response"]["output"]] == ["message"]


def test_log_probabilities_go_with_their_text() -> None:
    tokens = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]
    encoder = DIALECT.encoder("resp_1", 7, include_usage=True)
    stream = encoder.feed(
        (
            TextDelta(text="Hi"),
            LogprobsDelta(value={"content": tokens, "refusal": None}),
            Finished(reason="stop"),
            Ended(),
        )
    )
    told = {each["type"]: each for each in events_in(stream)}
    assert told["response.output_text.delta"]["logprobs"] == tokens
    assert told["response.output_text.done"]["logprobs"] == tokens
    again = folded(decoded(DIALECT, stream))
    assert again.choices[0].logprobs == {"content": tokens, "refusal": None}
    assert body_of(again)["output"][0]["content"][0]["logprobs"] == tokens
    plain = msgspec.structs.replace(again.choices[0], logprobs=None)
    without = msgspec.structs.replace(again, choices=(plain,))
    assert body_of(without)["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.parametrize(
    ("finish", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_how_an_answer_ended_is_told(finish: str, status: str, details: Any) -> None:
    told = write(TextDelta(text="Hi"), Finished(reason=finish))
    assert told[-1]["type"] == f"response.{status}"
    last = told[-1]["response"]
    assert (last["status"], last["incomplete_details"]) == (status, details)


@given(at=st.integers(1, 12))
def test_a_writer_that_was_shown_a_beginning_goes_on_in_its_item(at: int) -> None:
    words = "The sky is blue today."
    at_item = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    shown = BEGUN + ADDED
    for number, letter in enumerate(words[:at]):
        shown += event("response.output_text.delta", number + 2, **at_item, delta=letter)
    transcript = Transcript()
    transcript.feed(decoded(DIALECT, shown))
    encoder = DIALECT.encoder("resp_up", 7, include_usage=True)
    encoder.feed(transcript.events)
    block = [e for e in transcript.events if isinstance(e, TextDelta)][-1].block
    rest = encoder.feed((TextDelta(text=words[at:], block=block), Finished(reason="stop"), Ended()))
    told = events_in(rest)
    assert (told[0]["type"], told[0]["item_id"]) == ("response.output_text.delta", "msg_1")
    (item,) = told[-1]["response"]["output"]
    assert (item["id"], item["content"][0]["text"]) == ("msg_1", words)


def test_the_items_of_a_second_answer_do_not_take_the_place_of_the_first() -> None:
    encoder = DIALECT.encoder("resp_up", 7, include_usage=True)
    encoder.feed(decoded(DIALECT, BEGUN + ADDED))
    first = encoder.feed((TextDelta(text="The sky", block=0),))
    second = decoded(DIALECT, BEGUN + completed(thought("Hm."), message(said(" is blue."), id="x")))
    rest = [e for e in second if not isinstance(e, Started | ReasoningDelta)]
    told = events_in(first + encoder.feed(rest))
    output = told[-1]["response"]["output"]
    words = [part["text"] for item in output for part in item["content"]]
    assert "".join(words) == "The sky is blue."
    assert output[0]["id"] == "msg_1"


# --- other dialects --------------------------------------------------------------------------


def test_an_answer_goes_to_clients_of_other_dialects() -> None:
    tokens = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]
    answer = response(thought("Hm."), message(said("Hi", logprobs=tokens)), called())
    events = DIALECT.decode_body(200, json.dumps(answer).encode())
    chat = folded(translate_events(events, DIALECT, OPENAI_CHAT))
    assert told_of(chat.choices[0]) == [
        ("reasoning", "Hm."),
        ("text", "Hi"),
        ("call", "call_1", "f", '{"a":1}'),
    ]
    assert chat.choices[0].logprobs == {"content": tokens, "refusal": None}
    assert chat.usage is not None
    assert OPENAI_CHAT.tokens(chat.usage) == DIALECT.tokens(USAGE)
    assert chat.extra == {}
    body = json.loads(OPENAI_CHAT.write_body(chat, "id", 1))
    assert body["choices"][0]["message"]["reasoning_content"] == "Hm."
    block = json.loads(
        ANTHROPIC_MESSAGES.write_body(
            folded(translate_events(events, DIALECT, ANTHROPIC_MESSAGES)), "id", 1
        )
    )
    assert [each["type"] for each in block["content"]] == ["thinking", "text", "tool_use"]


def test_reasoning_of_others_bears_our_mark() -> None:
    events = (
        Started(model="m"),
        ReasoningDelta(text="Hm.", field="reasoning_content"),
        TextDelta(text="Hi"),
        Finished(reason="stop"),
        Ended(),
    )
    own = translated(events)
    for items in (
        events_in(encoded(DIALECT, own))[-1]["response"]["output"],
        json.loads(DIALECT.write_body(folded(own), "resp_1", 1))["output"],
    ):
        assert items[0]["type"] == "reasoning"
        assert items[0]["encrypted_content"] == "headstart:reasoning_content"
        assert items[0]["summary"] == [{"type": "summary_text", "text": "Hm."}]


RECORDING = (
    Path(__file__).parents[3]
    / "shared/data/recordings/pydantic-ai/test_openai_responses_stream.yaml"
)


@pytest.mark.skipif(not RECORDING.is_file(), reason="recordings are not here")
@pytest.mark.parametrize(("place", "tokens"), [(0, (255, 16)), (1, (278, 9))])
def test_a_recorded_stream_is_kept_whole(place: int, tokens: tuple[int, int]) -> None:
    recorded = yaml.safe_load(RECORDING.read_text())["interactions"][place]["response"]
    raw = recorded["body"]["string"].encode()
    answer = folded(decoded(DIALECT, raw))
    last = json.loads(SSEDecoder().feed(raw)[-1].data or b"")["response"]
    assert body_of(answer)["output"] == last["output"]
    assert answer.usage is not None
    assert (DIALECT.tokens(answer.usage).prompt, DIALECT.tokens(answer.usage).completion) == tokens
    assert events_in(stream_of(answer))[-1]["response"]["output"] == last["output"]
