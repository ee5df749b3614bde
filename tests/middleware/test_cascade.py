"""Cascades: which draft is served, which models are asked and when, what ends, what is booked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.attempts import AttemptRole, RoutingEstimate
from headstart.errors import UpstreamError, UpstreamRefused, UpstreamUnavailable
from headstart.middleware.upstreams.cascade import Cascade
from headstart.policies.drafts import score_prompt
from headstart.reply import HELD_BYTES
from headstart.settings import Strategy
from headstart.types import Piece, TextDelta
from support.candidates import Actor, Candid, Targets, chat_call, read, whole
from support.cascades import REFUSAL, ask, asking, broken, cascade, fast_says, slow_says

if TYPE_CHECKING:
    from headstart.middleware.upstreams.cascade import Cascade
    from support.candidates import Step

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

HARD = "If every box holds twice as many apples as 3/4 of the rest, how many are left in total?"


async def test_a_draft_that_passes_is_replayed_byte_for_byte_and_nobody_else_is_asked() -> None:
    targets, fast, slow = Targets(), fast_says("a", "b"), slow_says("no")
    async with await cascade(targets, fast, slow).send(chat_call()) as reply:
        assert reply.transforms == ("cascade:fast",)
        assert reply.storable
        assert fast.open == 0, "it was read to its end"
        data = b"".join([piece.data async for piece in reply.pieces])
    assert data == b"".join(piece.data for piece in whole("a", "b"))  # type: ignore[union-attr]
    assert slow.calls == []
    assert targets.outcomes() == [("fast", "won")]
    assert targets.roles() == [("fast", "draft")]


async def test_a_vetoed_draft_is_never_seen_and_the_strong_model_streams_live() -> None:
    targets, more = Targets(), asyncio.Event()
    slow = Actor("slow", [[*whole("yes")[:2], more, *whole("yes")[2:]]])
    async with await cascade(targets, fast_says(REFUSAL), slow).send(chat_call()) as reply:
        chunks = reply.pieces
        first = [await anext(chunks), await anext(chunks)]
        assert b"yes" in first[1].data
        more.set()
        async for _ in chunks:
            pass
        assert reply.transforms == ("cascade:slow",)
        assert reply.storable
    assert targets.outcomes() == [("fast", "rejected"), ("slow", "won")]
    assert targets.roles() == [("fast", "draft"), ("slow", "escalation")]
    targets.ledger.take("call")


FAILING: dict[str, list[Step]] = {
    "refused": [UpstreamRefused("no", status=404, headers=(), body=b"", code="x")],
    "cut": [*whole("half")[:2]],
    "breaks off": [*whole("half")[:2], UpstreamError("gone")],
    "nothing": [],
}


@pytest.mark.parametrize("failing", FAILING)
async def test_where_the_draft_fails_the_strong_model_is_asked_at_once(failing: str) -> None:
    targets, slow = Targets(), slow_says("strong")
    said = await ask(cascade(targets, Actor("fast", [FAILING[failing]]), slow))
    assert said == ("strong", ("cascade:slow",))
    assert targets.roles()[1] == ("slow", "fallback")
    assert targets.outcomes()[1] == ("slow", "won")


async def test_a_draft_too_long_to_be_held_is_not_served_half() -> None:
    long = Piece(b"x" * (HELD_BYTES + 1), (TextDelta(text="x"),))
    fast = Actor("fast", [[whole()[0], long, *whole()[1:]]])
    assert await ask(cascade(Targets(), fast, slow_says("b"))) == ("b", ("cascade:slow",))


async def test_a_doubted_draft_is_better_than_none_but_is_not_stored() -> None:
    targets = Targets()
    upstream = cascade(targets, fast_says("so so"), broken("slow"), lambda *_: 0.2)
    async with await upstream.send(chat_call()) as reply:
        assert (await read(reply), reply.transforms) == ("so so", ("cascade:draft",))
        assert not reply.storable
    assert targets.outcomes() == [("fast", "won"), ("slow", "failed")]


async def test_a_vetoed_draft_is_not_served_even_if_nobody_else_answers() -> None:
    targets = Targets()
    with pytest.raises(UpstreamRefused) as caught:
        await ask(cascade(targets, fast_says(REFUSAL), broken("slow")))
    assert caught.value.status == 500
    assert targets.outcomes() == [("fast", "rejected"), ("slow", "failed")]


async def test_where_both_fail_the_strong_models_words_are_handed_over() -> None:
    slow = Actor("slow", [[UpstreamRefused("s", status=503, headers=(), body=b"s", code="x")]])
    with pytest.raises(UpstreamRefused) as caught:
        await ask(cascade(Targets(), broken("fast"), slow))
    assert caught.value.body == b"s"


async def early(targets: Targets, fast: Actor, slow: Actor) -> Cascade:
    upstream = cascade(targets, fast, slow, escalate_early=True)
    request = asking(HARD).request
    assert request is not None
    for _ in range(30):
        await upstream.panel.judge_draft(request, None, None)
    assert upstream.panel.expects_failure(request)
    return upstream


async def test_a_likely_failure_starts_both_and_an_accepted_draft_ends_the_other() -> None:
    targets, slow = Targets(), Actor("slow", [[asyncio.Event()]])
    fast = Actor("fast", [[*whole("good")]], before=[20])
    async with await (await early(targets, fast, slow)).send(asking(HARD)) as reply:
        assert len(slow.calls) == 1
        assert (await read(reply), reply.transforms) == ("good", ("cascade:fast",))
        assert slow.open == 0
        assert sorted(targets.outcomes()) == [("fast", "won"), ("slow", "lost")], "it is booked now"


async def test_a_likely_failure_has_the_strong_answer_under_way() -> None:
    targets, slow = Targets(), slow_says("strong")
    draft_may_end = asyncio.Event()
    fast = Actor("fast", [[*whole(REFUSAL)[:2], draft_may_end, *whole("")[1:]]])
    upstream = await early(targets, fast, slow)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask(upstream, asking(HARD)))
        while not slow.calls:
            await asyncio.sleep(0)
        draft_may_end.set()
        assert await asked == ("strong", ("cascade:slow",))
    assert sorted(targets.outcomes()) == [("fast", "rejected"), ("slow", "won")]


async def test_a_strong_model_that_may_have_to_stop_is_asked_for_a_stream() -> None:
    targets, fast, slow = Targets(), fast_says("good"), Actor("slow", [[asyncio.Event()]])
    call = asking(HARD, stream=False)
    async with await (await early(targets, fast, slow)).send(call) as reply:
        assert await read(reply) == "good"
    assert slow.calls[0].streamed_upstream
    assert not fast.calls[0].streamed_upstream, "it is read to its end"
    later = slow_says("b")
    await ask(cascade(Targets(), fast_says(REFUSAL), later), call)
    assert not later.calls[0].streamed_upstream


async def test_a_draft_is_asked_for_uncompressed() -> None:
    fast, gzip = fast_says("a"), ((b"accept-encoding", b"gzip"), (b"x-mine", b"1"))
    call = msgspec.structs.replace(chat_call(editable=False), headers=gzip)
    await ask(cascade(Targets(), fast, slow_says("b")), call)
    assert fast.calls[0].headers == ((b"x-mine", b"1"), (b"accept-encoding", b"identity"))


async def test_a_checked_draft_that_is_slower_is_given_up() -> None:
    targets, fast = Targets(), Actor("fast", [[asyncio.Event()]])
    upstream = cascade(targets, fast, slow_says("b"), lambda *_: 0.9, draw=0.0)
    async with await upstream.send(chat_call()) as reply:
        assert await read(reply) == "b"
        assert sorted(targets.outcomes()) == [("fast", "rejected"), ("slow", "won")]


async def test_without_escalate_early_the_strong_model_waits_for_the_judge() -> None:
    targets, slow = Targets(), slow_says("strong")
    fast = Actor("fast", [whole("good")], before=[20])
    upstream = await early(targets, fast, slow)
    upstream.strategy = Strategy()
    assert (await ask(upstream, asking(HARD)))[0] == "good"
    assert slow.calls == []


def hard(targets: Targets, fast: Actor, slow: Actor, **options: Any) -> Cascade:
    return cascade(targets, fast, slow, judge=("prompt", "refusal"), min_confidence=0.99, **options)


async def test_a_hard_prompt_goes_straight_to_the_strong_model() -> None:
    targets, fast = Targets(), fast_says("draft")
    assert await ask(hard(targets, fast, slow_says("strong"))) == ("strong", ("cascade:slow",))
    assert fast.calls == []
    assert targets.roles() == [("slow", "escalation")]


async def test_a_hard_prompt_gets_a_draft_where_the_strong_model_fails() -> None:
    targets = Targets()
    said = await ask(hard(targets, fast_says("draft"), broken("slow")))
    assert said == ("draft", ("cascade:draft",))
    assert targets.roles() == [("slow", "escalation"), ("fast", "fallback")]


async def test_the_consumers_cancellation_ends_everything() -> None:
    never: list[Step] = [whole("a")[0], asyncio.Event()]
    targets, fast, slow = Targets(), Actor("fast", [never]), Actor("slow", [never])
    upstream = await early(targets, fast, slow)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask(upstream, asking(HARD)))
        while not (fast.open and slow.open):
            await asyncio.sleep(0)
        asked.cancel()
    assert fast.open == slow.open == 0
    assert sorted(targets.outcomes()) == [("fast", "abandoned"), ("slow", "abandoned")]


async def test_an_error_of_the_reader_ends_the_answer_and_passes() -> None:
    slow = Actor("slow", [[*whole("yes")[:2], asyncio.Event()]])
    with pytest.raises(ZeroDivisionError):
        async with await cascade(Targets(), fast_says(REFUSAL), slow).send(chat_call()):
            raise ZeroDivisionError
    assert slow.open == 0


async def test_those_to_be_avoided_are_left_out() -> None:
    targets, fast, slow = Targets(), fast_says("a"), slow_says("b")
    upstream = cascade(targets, fast, slow)
    avoids = (("fast",), ("b", "cascade:slow")), (("slow",), ("a", "cascade:draft"))
    for avoid, (said, mark) in avoids:
        assert await ask(upstream, chat_call(avoid=frozenset(avoid))) == (said, (mark,))
    with pytest.raises(UpstreamUnavailable):
        await ask(upstream, chat_call(avoid=frozenset(("fast", "slow"))))


async def test_a_rescue_goes_on_in_the_strong_models_words() -> None:
    upstream = cascade(Targets(), fast_says("a"), slow_says("b"))
    for avoid in ((), ("slow",)):
        call = chat_call(role=AttemptRole.RESCUE, avoid=frozenset(avoid))
        assert await ask(upstream, call) == ("b", ("cascade:slow",))


async def test_a_whole_answer_is_judged_as_a_stream_is() -> None:
    for said, mark in ((REFUSAL, "slow"), ("fine", "fast")):
        upstream = cascade(Targets(), fast_says(said), slow_says("b"))
        assert (await ask(upstream, chat_call(stream=False)))[1] == (f"cascade:{mark}",)


async def test_a_call_that_nobody_can_read_goes_to_the_strong_model() -> None:
    call = msgspec.structs.replace(chat_call(), request=None)
    assert await ask(cascade(Targets(), fast_says("a"), slow_says("b")), call) == (
        "b",
        ("cascade:slow",),
    )


async def test_a_stricter_cascade_does_not_share_the_drafts_of_another() -> None:
    targets = Targets()
    members = fast_says("a"), slow_says("b")
    found = {
        cascade(targets, *members, judge=judge, min_confidence=least).identity
        for judge in (("format",), ("format", "prompt"))
        for least in (0.5, 0.9)
    }
    assert len(found) == 4


async def test_its_estimate_is_a_whole_draft_and_a_share_of_the_other() -> None:
    targets = Targets()
    fast = RoutingEstimate(
        name="fast", ttft_s=0.1, tokens_per_s=100, output_tokens=100, cost_usd=1.0
    )
    slow = RoutingEstimate(name="slow", ready=False, ttft_s=1.0, tokens_per_s=50, cost_usd=10.0)
    upstream = cascade(
        targets,
        Candid(targets.target(fast_says()), lambda _: fast),
        Candid(targets.target(slow_says()), lambda _: slow),
    )
    request = chat_call().request
    assert request is not None
    assert score_prompt(request) is not None
    share = upstream.panel.failure_rate(request)
    found = upstream.estimate(chat_call())
    assert 0.0 < share < 1.0
    assert found.ready
    assert found.ttft_s == pytest.approx(1.1 + share * 1.0)
    assert found.cost_usd == pytest.approx(1.0 + share * 10.0)
