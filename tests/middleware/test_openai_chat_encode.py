from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import openai
import pytest
from hypothesis import given
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.types import (
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
)
from support.completions import completions
from support.events import crumbled, decoded, encoded, events_of, folded

if TYPE_CHECKING:
    from headstart.types import Completion, StreamEvent

DIALECT = OPENAI_CHAT
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
START = Started(id="up", model="m", created=5, fingerprint="fp")
WEATHER = ToolCallDelta(index=0, id="call_a", name="weather")
CALLS: tuple[StreamEvent, ...] = (
    START,
    TextDelta(text=""),
    WEATHER,
    ToolCallDelta(index=0, arguments='{"city":'),
    ToolCallDelta(index=1, id="call_b", name="time", arguments="{}"),
    ToolCallDelta(index=0, arguments='"Oslo"}'),
    Finished(reason="stop"),
    UsageReported(usage=USAGE),
    Ended(),
)


def chunks(events: tuple[StreamEvent, ...], **options: bool) -> list[dict[str, Any]]:
    *data, done, rest = encoded(DIALECT, events, **options).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(line.removeprefix(b"data: ")) for line in data]


def deltas(events: tuple[StreamEvent, ...]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(events) if chunk["choices"]]


def _is_top_level(event: StreamEvent) -> bool:
    return isinstance(event, ExtraDelta) and event.choice is None


def with_tool_finishes(completion: Completion) -> Completion:
    choices = [
        msgspec.structs.replace(choice, finish="tool_calls")
        if choice.finish == "stop" and any(isinstance(part, ToolCall) for part in choice.parts)
        else choice
        for choice in completion.choices
    ]
    return msgspec.structs.replace(completion, choices=tuple(choices), created=7)


@given(completions())
def test_stream_reads_back_as_the_same_answer(completion: Completion) -> None:
    # Fields of the answer itself ride on the finish, so they must be known by then.
    events = sorted(events_of(completion), key=lambda event: not _is_top_level(event))
    stream = encoded(DIALECT, crumbled(events))
    assert folded(decoded(DIALECT, stream)) == with_tool_finishes(completion)


@given(completions())
def test_events_fed_at_once_give_the_same_bytes_as_one_by_one(completion: Completion) -> None:
    events = events_of(completion)
    whole = DIALECT.encoder("id-1", 7, include_usage=True).feed(events)
    assert whole == encoded(DIALECT, events)


def test_role_comes_first_and_the_finish_in_a_chunk_of_its_own() -> None:
    events = (START, TextDelta(text=""), TextDelta(text="Hi"), Finished(reason="stop"), Ended())
    opening, text, finish = chunks(events)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert text["choices"] == [
        {"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}
    ]
    assert finish["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert {chunk["id"] for chunk in (opening, text, finish)} == {"id-1"}
    assert text["model"] == "m"
    assert text["created"] == 7
    assert text["system_fingerprint"] == "fp"


def test_call_is_named_once_and_its_arguments_follow_by_number() -> None:
    role, *calls, finish = deltas(CALLS)
    assert role["content"] is None
    assert [call["tool_calls"][0] for call in calls] == [
        {
            "index": 0,
            "id": "call_a",
            "type": "function",
            "function": {"name": "weather", "arguments": ""},
        },
        {"index": 0, "function": {"arguments": '{"city":'}},
        {
            "index": 1,
            "id": "call_b",
            "type": "function",
            "function": {"name": "time", "arguments": "{}"},
        },
        {"index": 0, "function": {"arguments": '"Oslo"}'}},
    ]
    assert finish == {}


def test_calls_that_end_with_stop_end_with_tool_calls() -> None:
    assert chunks(CALLS)[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_deprecated_call_has_a_reason_of_its_own() -> None:
    call = ToolCallDelta(index=0, name="f", arguments="{}", kind="function_call")
    _, named, finish = chunks((call, Finished(reason="stop"), Ended()))
    assert named["choices"][0]["delta"] == {"function_call": {"name": "f", "arguments": "{}"}}
    assert finish["choices"][0]["finish_reason"] == "function_call"


@pytest.mark.parametrize("wanted", [True, False])
def test_usage_comes_last_and_only_where_it_was_asked_for(wanted: bool) -> None:
    *before, last = chunks(CALLS, include_usage=wanted)
    assert all(each.get("usage", "none") == (None if wanted else "none") for each in before)
    assert (last.get("usage") == USAGE and last["choices"] == []) is wanted


def test_each_choice_has_a_role_chunk() -> None:
    events = tuple(
        event
        for choice in (1, 0)
        for event in (TextDelta(text=f"c{choice}", choice=choice), Finished(reason="stop"))
    )
    roles = [c["choices"][0] for c in chunks((*events, Ended())) if "role" in str(c)]
    assert [role["index"] for role in roles] == [1, 0]


def test_reasoning_and_refusal_have_fields_of_their_own() -> None:
    _, thought, other, refusal = deltas(
        (
            ReasoningDelta(text="hm", field="thinking", signature="s"),
            ReasoningDelta(text="so", field="reasoning"),
            RefusalDelta(text="no"),
            Ended(),
        )
    )
    assert (thought, other, refusal) == (
        {"reasoning_content": "hm"},
        {"reasoning": "so"},
        {"refusal": "no"},
    )


def test_fields_of_the_answer_ride_on_the_finish() -> None:
    extra = ExtraDelta(fields={"provider": "x"}, choice=None)
    *_, text, finish = chunks((extra, TextDelta(text="a"), Finished(reason="stop"), Ended()))
    assert "provider" not in text
    assert finish["provider"] == "x"


def test_error_is_one_data_line_and_nothing_follows_it() -> None:
    encoder = DIALECT.encoder("id-1", 7, include_usage=True)
    encoder.feed((START, TextDelta(text="a")))
    error = encoder.feed((ErrorReported(message="over", code="c", status=503), Ended()))
    assert error.startswith(b'data: {"error":')
    assert error.count(b"\n") == 2
    assert encoder.feed((TextDelta(text="b"), Finished(reason="stop"), Ended())) == b""


def test_encoder_that_was_fed_the_head_goes_on_after_it() -> None:
    first = DIALECT.encoder("id-1", 7, include_usage=True)
    second = DIALECT.encoder("id-1", 7, include_usage=True)
    head, tail = CALLS[:4], CALLS[4:]
    second.feed(head)
    assert first.feed(head) + second.feed(tail) == encoded(DIALECT, CALLS)


def test_sdk_accumulates_what_was_encoded() -> None:
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks(CALLS):
        list(state.handle_chunk(ChatCompletionChunk.model_validate(chunk)))
    answer = state.get_final_completion()
    arguments = [call.function.arguments for call in answer.choices[0].message.tool_calls or ()]
    assert arguments == ['{"city":"Oslo"}', "{}"]
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7


def test_sdk_reads_the_stream_and_raises_its_error() -> None:
    events = (START, TextDelta(text="Hi"), ErrorReported(message="over", status=503))
    content = encoded(DIALECT, events)

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=content, headers={"content-type": "text/event-stream"})

    with openai.OpenAI(
        api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
    ) as client:
        stream = client.chat.completions.create(model="m", messages=[], stream=True)
        texts: list[str] = []
        with pytest.raises(openai.APIError, match="over"):
            texts.extend(chunk.choices[0].delta.content or "" for chunk in stream)


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("usage", [(UsageReported(usage=USAGE),), ()])
def test_fields_that_come_after_the_finish_are_written(
    include_usage: bool, usage: tuple[StreamEvent, ...]
) -> None:
    late = ExtraDelta(fields={"x_groq": {"id": "r"}}, choice=None)
    events = (START, TextDelta(text="Hi"), Finished(reason="stop"), late, *usage, Ended())
    stream = encoded(DIALECT, events, include_usage=include_usage)
    assert folded(decoded(DIALECT, stream)).extra == {"x_groq": {"id": "r"}}
    *_, last, done = stream.decode().split("\n\n")[:-1]
    assert done == "data: [DONE]"
    if not (include_usage and usage):
        assert json.loads(last.removeprefix("data: "))["choices"][0]["delta"] == {}
