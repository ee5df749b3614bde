"""Limited answers: no client gets half an answer, whatever the upstream does."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.errors import UpstreamProtocolError
from headstart.policies.output.answer_limits import ENOUGH, LEAST_LAST
from headstart.policies.output.continuation import INSTRUCTION, anchor
from headstart.types import Ended, Finished, Piece, StreamEvent, TextDelta
from support.candidates import JSON, SSE, Step
from support.guarded import (
    BEGINNING,
    DIALECTS,
    REST,
    Site,
    a_call,
    body,
    events,
    frames,
    learned,
    site,
)

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


async def test_an_answer_within_its_limit_passes_byte_for_byte() -> None:
    place = site(events("Hi", " there", tokens=2))
    answer = await place.ask(a_call())
    assert answer.data == b"".join(
        each.data for each in frames(events("Hi", " there", tokens=2)) if isinstance(each, Piece)
    )
    assert (answer.transforms, answer.storable) == (("guard",), True)
    assert place.asked()[0]["max_completion_tokens"] == 40
    assert place.actor.calls[0].request is not None
    assert place.actor.calls[0].request.max_tokens == 40


async def test_a_negative_limit_makes_room_for_ours() -> None:
    place = site(events("Hi"))
    await place.ask(a_call(max_tokens=-1))
    (asked,) = place.asked()
    assert (asked["max_completion_tokens"], "max_tokens" in asked) == (40, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 5000},
        {"max_completion_tokens": 5},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
async def test_requests_with_a_limit_or_more_than_text_are_sent_unchanged(
    fields: dict[str, Any],
) -> None:
    place, call = site(events("Hi", reason="length")), a_call(**fields)
    answer = await place.ask(call)
    assert place.actor.calls[0].body == call.body
    assert (answer.transforms, answer.completion.choices[0].finish) == ((), "length")


async def test_anthropics_callers_have_a_limit_of_their_own() -> None:
    place, call = site(events("Hi")), a_call(dialect=ANTHROPIC_MESSAGES.name)
    async with await place.guard.send(call) as reply:
        assert reply.transforms == ()
    assert place.actor.calls[0].body == call.body


async def test_a_limit_is_learned_from_the_answers_that_pass() -> None:
    place = site(events("Hi", tokens=100), max_tokens="guard")
    for _ in range(ENOUGH):
        assert (await place.ask(a_call())).transforms == ()
    assert (await place.ask(a_call())).transforms == ("guard",)
    assert place.asked()[-1]["max_completion_tokens"] == pytest.approx(150, rel=0.05)


async def test_geminis_limit_stands_in_its_config() -> None:
    gemini = DIALECTS[GEMINI_GENERATE.name]
    call = a_call(dialect=GEMINI_GENERATE.name, generationConfig={"temperature": 1})
    said = events(BEGINNING, reason="length", tokens=None)
    place = Site([frames(said, gemini), frames(events(REST, tokens=None), gemini)])
    answer = await place.ask(call)
    assert place.asked()[0]["generationConfig"] == {"temperature": 1, "maxOutputTokens": 40}
    assert [turn["role"] for turn in place.asked()[1]["contents"]] == ["user", "model", "user"]
    assert answer.text == BEGINNING + REST


# --- continuations ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "more", [REST, anchor(BEGINNING) + REST, f"Going on:\n\n{anchor(BEGINNING)}{REST}"]
)
@pytest.mark.parametrize("tokens", [40, None])
async def test_a_cut_answer_is_continued_as_one(
    more: str, tokens: int | None, *, stream: bool
) -> None:
    place = site(
        events(BEGINNING[:20], BEGINNING[20:], reason="length", tokens=tokens),
        events(more[:9], more[9:40], more[40:], tokens=tokens and 9),
        stream=stream,
    )
    answer = await place.ask(a_call(stream=stream, stream_options={"include_usage": True}))
    assert answer.text == BEGINNING + REST
    assert answer.completion.choices[0].finish == "stop"
    assert (answer.transforms, answer.storable) == (("guard", "continued"), False)
    assert answer.data.count(b"up-1") > 0
    assert b'"length"' not in answer.data
    usage = answer.completion.usage
    assert (usage and (usage["prompt_tokens"], usage["completion_tokens"])) == (
        None if tokens is None else (20, 49)
    )
    messages = place.asked()[1]["messages"]
    assert messages[1:] == [
        {"role": "assistant", "content": BEGINNING},
        {"role": "user", "content": INSTRUCTION + anchor(BEGINNING)},
    ]
    assert place.targets.roles() == [("a", "first"), ("a", "continue")]
    (row,) = place.targets.ledger.shaped("call")
    assert (row.kind, row.tokens_after) == ("guard", 49 if tokens else row.tokens_after)


async def test_the_shown_part_of_a_cut_answer_stays_to_the_byte() -> None:
    first = frames(events(BEGINNING, reason="length"))
    place = site(events(BEGINNING, reason="length"), events(REST))
    answer = await place.ask(a_call())
    assert answer.data.startswith(b"".join(p.data for p in first[:2] if isinstance(p, Piece)))
    assert answer.data.count(b'"role"') == 1
    assert answer.data.endswith(b"data: [DONE]\n\n")


async def test_one_piece_may_hold_a_whole_cut_answer() -> None:
    said = events(BEGINNING, reason="length")
    data = b"".join(each.data for each in frames(said) if isinstance(each, Piece))
    place = Site([[Piece(data, tuple(said))], frames(events(REST))])
    assert (await place.ask(a_call())).text == BEGINNING + REST


async def test_an_answer_that_the_model_ended_itself_passes_with_its_reason() -> None:
    place = site(events(BEGINNING, reason="length", tokens=12))
    answer = await place.ask(a_call())
    assert answer.completion.choices[0].finish == "length"
    assert len(place.actor.calls) == 1


async def test_a_runaway_that_never_repeats_itself_ends() -> None:
    parts = [" ".join(map(str, range(start, start + 900))) for start in (0, 1000, 2000, 3000)]
    scripts = [frames(events(part, reason="length", tokens=None)) for part in parts]
    place = Site(scripts, {"max_tokens": "guard"}, lengths=learned())
    with pytest.raises(UpstreamProtocolError, match="does not end"):
        await place.ask(a_call())
    limits = [asked["max_completion_tokens"] for asked in place.asked()]
    assert limits == pytest.approx([150, 150, LEAST_LAST], rel=0.05)


async def test_the_second_continuation_has_no_limit_while_lengths_are_unknown() -> None:
    parts = ["one two", " three four", " five six."]
    place = site(
        events(parts[0], reason="length"),
        events(parts[1], reason="length"),
        events(parts[2], tokens=400),
    )
    assert (await place.ask(a_call())).text == "".join(parts)
    limits = [asked.get("max_completion_tokens") for asked in place.asked()]
    assert limits == [40, 40, None]
    assert place.targets.ledger.shaped("call")[0].tokens_after == 480


async def test_an_answer_that_runs_in_circles_ends_in_an_error() -> None:
    circles = events("and so on, " * 400, reason="length")
    place = site(circles, circles, circles)
    with pytest.raises(UpstreamProtocolError, match="repeats itself"):
        await place.ask(a_call())
    assert len(place.actor.calls) == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "second", [[Piece(b"broken")], [*frames([*events("ter")[:2]])], [UpstreamProtocolError("no")]]
)
async def test_an_answer_that_cannot_be_continued_is_an_error_and_never_short(
    second: list[Step], *, stream: bool
) -> None:
    cut = events(BEGINNING, reason="length")
    place = Site([frames(cut) if stream else body(cut), second], headers=SSE if stream else JSON)
    async with await place.guard.send(a_call(stream=stream)) as reply:
        seen: list[StreamEvent] = []

        async def read() -> None:
            async for piece in reply.pieces:
                seen.extend(piece.events)

        with pytest.raises(UpstreamProtocolError, match="our limit of 40 tokens"):
            await read()
    assert not any(isinstance(event, Finished | Ended) for event in seen)


async def test_a_provider_that_takes_a_beginning_goes_on_from_it() -> None:
    place = site(events(BEGINNING + " ", reason="length"), events(REST), prefill={"a": "prefix"})
    answer = await place.ask(a_call())
    assert answer.text == BEGINNING + " " + REST
    assert place.asked()[1]["messages"][1:] == [
        {"role": "assistant", "content": BEGINNING, "prefix": True}
    ]


async def test_a_dialect_without_prefill_is_asked_for_the_rest_in_words() -> None:
    gemini, more = DIALECTS[GEMINI_GENERATE.name], anchor(BEGINNING) + REST
    scripts = [
        frames(events(BEGINNING, reason="length", tokens=None), gemini),
        frames(events(more, tokens=None), gemini),
    ]
    place = Site(scripts, {"prefill": {"a": "prefix"}})
    answer = await place.ask(a_call(dialect=GEMINI_GENERATE.name))
    assert answer.text == BEGINNING + REST
    assert [turn["role"] for turn in place.asked()[1]["contents"]] == ["user", "model", "user"]


async def test_leaving_early_leaves_no_call_open() -> None:
    place = Site([frames(events(BEGINNING, reason="length")), [*frames(events(REST))[:2], 10_000]])
    async with await place.guard.send(a_call()) as reply:
        async for piece in reply.pieces:
            if any(isinstance(each, TextDelta) and each.text == REST for each in piece.events):
                break
    assert place.actor.open == 0
