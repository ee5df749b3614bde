from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.reply import Transcript, storable
from headstart.types import (
    Completion,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    Reasoning,
    ReasoningDelta,
    Started,
    StreamEvent,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
)
from support.completions import completions
from support.events import events_of

if TYPE_CHECKING:
    from headstart.types import Choice

STOP = Finished(reason="stop")
END = Ended()


def collect(*events: StreamEvent, max_bytes: int = 1000) -> Transcript:
    transcript = Transcript(max_bytes)
    transcript.feed(events)
    return transcript


def choice_of(*events: StreamEvent) -> Choice:
    completion = collect(*events, STOP, END).completion(now=0)
    assert completion is not None
    return completion.choices[0]


@given(completions())
def test_unfolded_answer_folds_back(completion: Completion) -> None:
    transcript = Transcript()
    transcript.feed(events_of(completion))
    assert transcript.completion(now=0) == completion


@given(completions())
def test_cut_answer_is_never_whole(completion: Completion) -> None:
    events = events_of(completion)
    transcript = Transcript()
    for event in events[:-1]:
        transcript.feed((event,))
        assert transcript.completion(now=0) is None


INTEGERS = st.integers() | st.sampled_from((2**63, 2**64, -(2**63) - 1, 10**400))
ANY_FIELDS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text(max_size=3),
    st.recursive(INTEGERS | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)),
    max_size=3,
)


@given(ANY_FIELDS, ANY_FIELDS, ANY_FIELDS, INTEGERS)
def test_any_numbers_of_a_provider_can_be_stored(
    usage: dict[str, Any], extra: dict[str, Any], inner: dict[str, Any], created: int
) -> None:
    completion = collect(
        Started(model="m", created=created),
        TextDelta(text="Hi"),
        ToolCallDelta(index=0, id="a", name="f", extra=inner),
        LogprobsDelta(value={"content": [inner]}),
        ExtraDelta(fields=extra),
        UsageReported(usage=usage),
        STOP,
        END,
        max_bytes=100_000,
    ).completion(now=0)
    assert completion is not None
    kept = storable(completion)
    value = msgspec.msgpack.encode(kept)
    assert msgspec.msgpack.decode(value, type=Completion) == kept


CLEAN: tuple[StreamEvent, ...] = (Started(model="m", created=5), TextDelta(text="Hi"), STOP, END)


def test_clean_answer_is_whole() -> None:
    completion = collect(*CLEAN).completion(now=9)
    assert completion is not None
    assert (completion.model, completion.created) == ("m", 5)
    assert completion.choices[0].parts == (Text(text="Hi"),)


def test_now_stands_in_for_a_missing_creation_time() -> None:
    completion = collect(TextDelta(text="Hi"), STOP, END).completion(now=9.7)
    assert completion is not None
    assert completion.created == 9


def test_numbers_that_fit_are_kept_beside_those_that_do_not() -> None:
    usage = {"prompt_tokens": 2**70, "completion_tokens": 7, "cost": 0.25, "ok": True}
    completion = collect(*CLEAN[:3], UsageReported(usage=usage), END).completion(now=9)
    assert completion is not None
    kept = storable(completion)
    assert kept is not None
    assert kept.usage == {**usage, "prompt_tokens": 2**63 - 1}
    assert kept.created == 5


NOT_WHOLE: dict[str, tuple[StreamEvent, ...]] = {
    "nothing": (),
    "only an end": (END,),
    "no end": CLEAN[:-1],
    "no finish": (TextDelta(text="Hi"), END),
    "one of two choices without finish": (*CLEAN[:-1], TextDelta(text="", choice=1), END),
    "an error": (*CLEAN[:-1], ErrorReported(message="no"), END),
    "an error after the end": (*CLEAN, ErrorReported(message="no")),
}


@pytest.mark.parametrize("events", NOT_WHOLE.values(), ids=NOT_WHOLE.keys())
def test_answer_that_is_not_whole_is_none(events: tuple[StreamEvent, ...]) -> None:
    assert collect(*events).completion(now=0) is None


def test_finished_without_terminal_event_is_told_apart() -> None:
    transcript = collect(*CLEAN[:-1])
    assert (transcript.finished, transcript.ended) == (True, False)
    transcript.feed((END,))
    assert transcript.completion(now=0) is not None


CONTENT: dict[str, tuple[StreamEvent, bool]] = {
    "a role": (TextDelta(text=""), False),
    "a name": (Started(model="m"), False),
    "usage": (UsageReported(usage={}), False),
    "an unknown field of the chunk": (ExtraDelta(fields={"a": 1}, choice=None), False),
    "an unknown field beside the message": (ExtraDelta(fields={"a": 1}, beside=True), False),
    "an empty unknown field": (ExtraDelta(fields={"a": []}), False),
    "a finish": (STOP, False),
    "an error": (ErrorReported(message="no"), False),
    "text": (TextDelta(text="a"), True),
    "reasoning": (ReasoningDelta(text="a"), True),
    "a tool call": (ToolCallDelta(index=0, name="f"), True),
    "an unknown field of the message": (ExtraDelta(fields={"a": [1]}), True),
}


@pytest.mark.parametrize(("event", "started"), CONTENT.values(), ids=CONTENT.keys())
def test_content_starts_with_what_a_reader_sees(event: StreamEvent, started: bool) -> None:
    assert collect(event).content_started is started


def test_parts_keep_the_order_of_arrival() -> None:
    choice = choice_of(
        ReasoningDelta(text="a"),
        ReasoningDelta(text="b", signature="s"),
        TextDelta(text="c"),
        ToolCallDelta(index=0, id="t", name="f", arguments="{"),
        TextDelta(text="d"),
        ToolCallDelta(index=0, arguments="}", extra={"x": 1}),
    )
    assert choice.parts == (
        Reasoning(text="ab", signature="s"),
        Text(text="c"),
        ToolCall(id="t", name="f", arguments="{}", extra={"x": 1}),
        Text(text="d"),
    )


def test_reasoning_under_two_names_is_not_torn_apart() -> None:
    pair = (ReasoningDelta(text="a"), ReasoningDelta(text="a", field="reasoning"))
    assert choice_of(*pair, *pair).parts == (
        Reasoning(text="aa"),
        Reasoning(text="aa", field="reasoning"),
    )


MERGES: dict[str, tuple[list[Any], Any]] = {
    "lists grow": ([[1], [2]], [1, 2]),
    "objects are filled in": ([{"a": 1}, {}, {"b": 2}], {"a": 1, "b": 2}),
    "the last text stands": (["a", "b"], "b"),
    "indexed items are pieced together": (
        [
            [{"index": 0, "type": "t", "text": "a", "format": "f"}],
            [{"index": 0, "type": "t", "text": "b", "format": "f", "signature": "s"}],
            [{"index": 1, "type": "t", "text": "c"}],
        ],
        [
            {"index": 0, "type": "t", "text": "ab", "format": "f", "signature": "s"},
            {"index": 1, "type": "t", "text": "c"},
        ],
    ),
}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("values", "merged"), MERGES.values(), ids=MERGES.keys())
def test_unknown_fields_add_up(values: list[Any], merged: Any, beside: bool) -> None:
    choice = choice_of(*(ExtraDelta(fields={"x": value}, beside=beside) for value in values))
    assert (choice.beside if beside else choice.extra) == {"x": merged}


def test_merging_leaves_the_events_as_they_were() -> None:
    event = ExtraDelta(fields={"x": [{"index": 0, "text": "a"}], "y": [1]})
    collect(event, event)
    assert event == ExtraDelta(fields={"x": [{"index": 0, "text": "a"}], "y": [1]})


def test_logprobs_add_up() -> None:
    deltas = [LogprobsDelta(value={"content": [{"token": t}], "refusal": None}) for t in "ab"]
    assert choice_of(*deltas).logprobs == {
        "content": [{"token": "a"}, {"token": "b"}],
        "refusal": None,
    }


def test_later_names_complete_the_first() -> None:
    completion = collect(
        Started(model="m", created=1),
        Started(created=2, fingerprint="fp", tier="default"),
        *CLEAN[1:],
    ).completion(now=0)
    assert completion is not None
    assert (completion.model, completion.created) == ("m", 1)
    assert (completion.fingerprint, completion.tier) == ("fp", "default")


def test_usage_replaces_and_never_adds() -> None:
    assert collect(UsageReported(usage={"a": 1}), UsageReported(usage={"a": 2})).usage == {"a": 2}


OVERSIZED: dict[str, StreamEvent] = {
    "text": TextDelta(text="é" * 60),
    "arguments": ToolCallDelta(index=0, arguments="a" * 101),
    "fields": ExtraDelta(fields={"a": "b" * 101}),
    "logprobs": LogprobsDelta(value={"content": ["a" * 101]}),
}


@pytest.mark.parametrize("event", OVERSIZED.values(), ids=OVERSIZED.keys())
def test_answer_past_the_bound_is_let_go_but_still_followed(event: StreamEvent) -> None:
    transcript = collect(TextDelta(text="Hi"), event, TextDelta(text="a"), STOP, END, max_bytes=100)
    assert transcript.overflowed
    assert (transcript.ended, transcript.finished) == (True, True)
    assert transcript.completion(now=0) is None


def test_answer_at_the_bound_is_kept() -> None:
    transcript = collect(TextDelta(text="é" * 50), STOP, END, max_bytes=100)
    assert transcript.completion(now=0) is not None
