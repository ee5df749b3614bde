"""Limited answers that cannot be continued, limits that are refused, and tight ones."""

from __future__ import annotations

import pytest

from headstart.errors import UpstreamProtocolError, UpstreamRefused
from headstart.observe import StageFailed
from headstart.policies.output.answer_limits import LEAST_LAST
from headstart.types import ReasoningDelta, StreamEvent, ToolCallDelta
from support.guarded import (
    Site,
    a_call,
    events,
    frames,
    learned,
    site,
)

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("thought", [[], [ReasoningDelta(text="hm")]])
async def test_a_model_that_was_cut_while_it_thought_is_asked_without_a_limit(
    thought: list[StreamEvent], *, stream: bool
) -> None:
    start, *end = events(reason="length")
    place = site([start, *thought, *end], events("Twice a day."), stream=stream)
    answer = await place.ask(a_call(stream=stream))
    assert answer.text.removeprefix("hm") == "Twice a day."
    assert answer.completion.choices[0].finish == "stop"
    assert place.actor.calls[-1].body == a_call(stream=stream).body


async def test_a_whole_answer_that_is_not_text_is_made_anew() -> None:
    start, *end = events(reason="length")
    called = [start, ToolCallDelta(index=0, id="1", name="f", arguments='{"a'), *end]
    place = site(called, events("Twice a day."), stream=False)
    assert (await place.ask(a_call(stream=False))).text == "Twice a day."


async def test_a_stream_that_is_not_text_is_an_error() -> None:
    start, *end = events(reason="length")
    called = [start, ToolCallDelta(index=0, id="1", name="f", arguments='{"a'), *end]
    with pytest.raises(UpstreamProtocolError, match="not plain text"):
        await site(called).ask(a_call())


async def test_an_upstream_that_refuses_the_limit_is_asked_without_ever_after() -> None:
    refusal = UpstreamRefused(
        "no", status=400, headers=(), body=b'{"error":"max_tokens is too large"}', code="x"
    )
    place = Site([[refusal], frames(events("Hi")), frames(events("Ho"))])
    answers = [await place.ask(a_call()) for _ in range(2)]
    assert [each.text for each in answers] == ["Hi", "Ho"]
    assert [each.transforms for each in answers] == [(), ()]
    assert [asked.get("max_completion_tokens") for asked in place.asked()] == [40, None, None]
    assert place.seen == [StageFailed(stage="output", error="LimitRefused")]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, "max_tokens is too large"),
        (413, "Request too large for model `m` on tokens per minute (TPM): Limit 6000"),
    ],
)
async def test_a_last_limit_above_that_of_the_model_is_left_out(status: int, error: str) -> None:
    refusal = UpstreamRefused("no", status=status, headers=(), body=error.encode(), code="x")
    scripts = [frames(events(part, reason="length", tokens=None)) for part in ("One.", " Two.")]
    place = Site(
        [*scripts, [refusal], frames(events(" Three."))],
        {"max_tokens": "guard"},
        lengths=learned(),
    )
    assert (await place.ask(a_call())).text == "One. Two. Three."
    limits = [asked.get("max_completion_tokens") for asked in place.asked()]
    assert limits[2:] == [LEAST_LAST, None]
    assert place.seen == []


async def test_an_answer_that_ends_at_the_limit_of_the_model_says_so() -> None:
    refusal = UpstreamRefused(
        "no", status=400, headers=(), body=b'{"error":"max_tokens is too large"}', code="x"
    )
    parts = [frames(events(each, reason="length", tokens=None)) for each in ("1.", " 2.", " 3.")]
    place = Site([*parts[:2], [refusal], parts[2]], {"max_tokens": "guard"}, lengths=learned())
    answer = await place.ask(a_call())
    assert answer.text == "1. 2. 3."
    assert answer.completion.choices[0].finish == "length"


async def test_the_low_limit_of_an_answer_that_repeats_itself_is_never_left_out() -> None:
    refusal = UpstreamRefused(
        "no", status=400, headers=(), body=b'{"error":"max_tokens is below 16"}', code="x"
    )
    looping = events("The tide comes and goes. " * 99, reason="length", tokens=None)
    place = Site([frames(looping), [refusal], frames(events("And so on."))])
    with pytest.raises(UpstreamProtocolError, match="could not be continued"):
        await place.ask(a_call())
    assert [asked["max_completion_tokens"] for asked in place.asked()] == [40, 10]


async def test_a_request_that_is_refused_either_way_takes_the_limit_from_nobody() -> None:
    refusal = UpstreamRefused(
        "no", status=400, headers=(), body=b'{"error":"unknown: max_tokens"}', code="x"
    )
    place = Site([[refusal], [refusal], frames(events("Hi"))])
    with pytest.raises(UpstreamRefused):
        await place.ask(a_call())
    await place.ask(a_call())
    assert [asked.get("max_completion_tokens") for asked in place.asked()] == [40, None, 40]


async def test_a_prompt_that_leaves_no_room_takes_the_limit_from_nobody_else() -> None:
    full = UpstreamRefused(
        "no", status=400, headers=(), body=b'{"error":"maximum context length is 8192"}', code="x"
    )
    place = Site([[full], frames(events("Hi")), frames(events("Ho"))])
    assert [(await place.ask(a_call())).text for _ in range(2)] == ["Hi", "Ho"]
    assert [asked.get("max_completion_tokens") for asked in place.asked()] == [40, None, 40]


async def test_a_refused_request_is_the_callers_to_know() -> None:
    refusal = UpstreamRefused("no", status=400, headers=(), body=b"bad words", code="x")
    place = Site([[refusal]])
    with pytest.raises(UpstreamRefused):
        await place.ask(a_call())
    assert len(place.actor.calls) == 1


# --- tight -----------------------------------------------------------------------------------


async def test_tight_leaves_a_share_of_the_conversations_alone_and_measures_both() -> None:
    place = Site([frames(events("Hi", tokens=7))], {"max_tokens": "tight"}, learned())
    kinds = set()
    for number in range(60):
        asked = [{"role": "user", "content": f"Tides of day {number}?"}]
        answer = await place.ask(a_call(messages=asked))
        (row,) = place.targets.ledger.shaped("call")
        assert answer.transforms == (("tight",) if row.kind == "tight" else ())
        assert row.tokens_after == 7
        kinds.add(row.kind)
    assert kinds == {"tight", "tight-holdout"}
    limits = [asked.get("max_completion_tokens") for asked in place.asked()]
    assert all(each in (None, pytest.approx(100, rel=0.05)) for each in limits)
    assert {each is None for each in limits} == {True, False}
