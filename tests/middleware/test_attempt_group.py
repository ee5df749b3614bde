"""Groups of attempts: which one wins, which are started, cancelled and booked."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from headstart.attempts import AttemptRole, RoutingEstimate
from headstart.errors import (
    IdleConnectionClosed,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
    UpstreamUnreachable,
)
from headstart.middleware.upstreams.attempt_group import AttemptGroup
from headstart.policies.routing.failures import RetryBudget
from headstart.policies.routing.schedule import ExtraBudget
from headstart.reply import AnswerWithheld, Reply
from headstart.settings import Strategy
from headstart.types import Call, Ended, ErrorReported, Finished, Piece, Started, TextDelta
from support.candidates import (
    SSE,
    UNIX,
    Actor,
    Candid,
    Targets,
    attempt_group,
    chat_call,
    read,
    say,
    text,
    whole,
)

if TYPE_CHECKING:
    from support.candidates import Step

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

HEADERS_ONLY = say(Started(id="x"), TextDelta(text=""))
NEVER = 10**9


def never() -> list[Step]:
    return [HEADERS_ONLY, asyncio.Event()]


def down() -> list[Step]:
    return [UpstreamUnreachable("down")]


async def race(targets: Targets, *actors: Actor, **options: Any) -> str:
    upstream = attempt_group("race", *(targets.target(each) for each in actors), **options)
    async with await upstream.send(chat_call()) as reply:
        return await read(reply)


LOSING: dict[str, list[Any]] = {
    "headers": [HEADERS_ONLY, asyncio.Event],
    "error frame": [HEADERS_ONLY, say(ErrorReported(message="boom"))],
    "bare done": [say(Ended())],
    "nothing": [],
    "veto": [HEADERS_ONLY, say(Finished(reason="content_filter"), Ended())],
    "unreachable": [UpstreamUnreachable("down")],
}


@pytest.mark.parametrize("losing", LOSING)
async def test_only_content_wins_a_race(losing: str) -> None:
    steps = [step() if callable(step) else step for step in LOSING[losing]]
    targets, loser = Targets(), Actor("loser", [steps])
    winner = Actor("winner", [[20, *whole("yes")]])
    assert await race(targets, loser, winner) == "yes"
    outcome = "lost" if losing == "headers" else "failed"
    assert sorted(targets.outcomes()) == [("loser", outcome), ("winner", "won")]
    assert loser.open == winner.open == 0


async def test_losers_are_cancelled_at_once_and_nobody_waits_for_them() -> None:
    targets, unwound = Targets(), asyncio.Event()

    class Slow(Actor):
        """Takes its time to close."""

        async def close(self, error: BaseException | None) -> None:
            await unwound.wait()
            await super().close(error)

    loser, winner = Slow("loser", [never()]), Actor("winner", [[10, *whole("a", "b")]])
    upstream = attempt_group("race", targets.target(loser), targets.target(winner))
    async with await upstream.send(chat_call()) as reply:
        assert await read(reply) == "ab"
        assert loser.open == 1
        unwound.set()
    assert loser.open == 0
    assert isinstance(loser.closed[0], asyncio.CancelledError)
    targets.ledger.take("call")


async def test_the_consumers_cancellation_ends_everything() -> None:
    targets = Targets()
    actors = [Actor(name, [never()]) for name in "abc"]
    nested = attempt_group("race", *map(targets.target, actors[1:]))
    upstream = attempt_group("race", targets.target(actors[0]), nested)

    async def ask() -> None:
        async with await upstream.send(chat_call()):
            pytest.fail("entered")

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask())
        while sum(each.open for each in actors) < 3:
            await asyncio.sleep(0)
        asked.cancel()
    assert asked.cancelled()
    assert [each.open for each in actors] == [0, 0, 0]
    assert sorted(targets.outcomes()) == [(name, "abandoned") for name in "abc"]


async def test_a_consumers_own_error_comes_out_as_it_is() -> None:
    targets = Targets()
    with pytest.raises(ValueError, match="mine"):
        async with await attempt_group(
            "race", *(targets.target(Actor(n, [whole("x")])) for n in "ab")
        ).send(chat_call()):
            raise ValueError("mine")


async def test_a_bug_in_a_member_is_not_hidden() -> None:
    targets = Targets()
    actors = [Actor("a", [[RuntimeError("bug")]]), Actor("b", [never()])]
    with pytest.raises(RuntimeError, match="bug"):
        await race(targets, *actors)
    assert [each.open for each in actors] == [0, 0]


async def test_a_group_may_be_a_member_of_a_group() -> None:
    targets = Targets()
    a, b, c = (Actor(n, [s]) for n, s in (("a", never()), ("b", down()), ("c", [5, *whole("c")])))
    hedge = attempt_group("hedge", targets.target(b), targets.target(c))
    upstream = attempt_group("race", targets.target(a), hedge)
    async with await upstream.send(chat_call()) as reply:
        assert await read(reply) == "c"
    assert sorted(targets.outcomes()) == [("a", "lost"), ("b", "failed"), ("c", "won")]
    assert sorted(targets.roles()) == [("a", "first"), ("b", "race"), ("c", "fallback")]
    assert upstream.names == {"a", "b", "c"}


async def test_a_failed_member_is_retried_then_the_next_one_is_asked() -> None:
    targets = Targets()
    a, b = Actor("a", [down()]), Actor("b", [whole("b")])
    upstream = attempt_group("fallback", targets.target(a), targets.target(b), retries=1)
    async with await upstream.send(chat_call()) as reply:
        assert await read(reply) == "b"
    assert targets.roles() == [("a", "first"), ("a", "retry"), ("b", "fallback")]


def refusal(status: int, message: str) -> UpstreamRefused:
    body = f'{{"error":{{"message":"{message}"}}}}'.encode()
    return UpstreamRefused(message, status=status, headers=(), body=body, code="x")


async def test_the_callers_own_fault_is_handed_over_at_once() -> None:
    targets, b = Targets(), Actor("b", [whole("b")])
    a = Actor("a", [[refusal(400, "bad tool")]])
    upstream = attempt_group("fallback", targets.target(a), targets.target(b))
    with pytest.raises(UpstreamRefused, match="bad tool"):
        async with await upstream.send(chat_call()):
            pytest.fail("entered")
    assert b.calls == []


async def test_the_first_members_words_are_the_most_useful() -> None:
    targets = Targets()
    actors = [
        Actor("a", [down()]),
        Actor("b", [[refusal(500, "b broke")]]),
        Actor("c", [[refusal(503, "c is full")]]),
    ]
    with pytest.raises(UpstreamRefused, match="b broke") as caught:
        await race(targets, *actors)
    assert (b"x-should-retry", b"false") in caught.value.headers


async def test_a_retry_that_was_not_read_does_not_hide_the_providers_words() -> None:
    closed = IdleConnectionClosed("closed an idle connection")
    a = Actor("a", [[refusal(500, "a broke")], [closed]])
    upstream = attempt_group("fallback", Targets().target(a), retries=1)
    with pytest.raises(UpstreamRefused, match="a broke"):
        async with await upstream.send(chat_call()):
            pytest.fail("entered")
    assert len(a.calls) == 2


@pytest.mark.parametrize(
    ("first", "count", "fields", "calls"),
    [
        (UpstreamUnreachable("down"), None, {}, 2),
        (UpstreamUnreachable("down"), b"0", {}, 2),  # perhaps it never retries
        (UpstreamUnreachable("down"), b"x", {}, 2),
        (UpstreamUnreachable("down"), b"1", {}, 1),
        (refusal(500, "a broke"), b"10", {}, 1),
        (IdleConnectionClosed("closed an idle connection"), b"1", {}, 2),
        (UpstreamUnreachable("down"), b"1", {"role": AttemptRole.RESCUE}, 2),
    ],
)
async def test_only_one_upstream_is_not_asked_again_for_an_sdk_that_retries(
    first: Exception, count: bytes | None, fields: dict[str, Any], calls: int
) -> None:
    a = Actor("a", [[first], whole("a")])
    upstream = attempt_group("fallback", Targets().target(a), retries=1)
    headers = () if count is None else ((b"x-stainless-retry-count", count),)
    with suppress(UpstreamRefused, UpstreamUnreachable):
        async with await upstream.send(chat_call(headers=headers, **fields)) as reply:
            assert await read(reply) == "a"
    assert len(a.calls) == calls


async def test_one_of_several_upstreams_is_asked_again_for_an_sdk_that_retries() -> None:
    targets = Targets()
    a, b = Actor("a", [down(), whole("a")]), Actor("b", [down()])
    upstream = attempt_group("fallback", targets.target(a), targets.target(b), retries=1)
    headers = ((b"x-stainless-retry-count", b"1"),)
    async with await upstream.send(chat_call(headers=headers)) as reply:
        assert await read(reply) == "a"


async def test_a_vetoed_answer_comes_before_any_error() -> None:
    targets = Targets()
    actors = [Actor("a", [down()]), Actor("b", [[say(Finished(reason="content_filter"), Ended())]])]
    with pytest.raises(AnswerWithheld):
        await race(targets, *actors)


async def test_avoided_members_are_not_asked() -> None:
    targets = Targets()
    a, b = Actor("a", [whole("a")]), Actor("b", [whole("b")])
    upstream = attempt_group("race", targets.target(a), targets.target(b))
    async with await upstream.send(chat_call(avoid=frozenset("a"))) as reply:
        assert await read(reply) == "b"
    with pytest.raises(UpstreamUnavailable):
        async with await upstream.send(chat_call(avoid=frozenset("ab"))):
            pytest.fail("entered")
    assert a.calls == []


async def test_a_provider_that_bills_cancelled_calls_races_only_if_the_route_allows_it() -> None:
    for billed in (False, True):
        targets = Targets()
        a, b = Actor("a", [[30, *whole("a")]]), Actor("b", [[10, *whole("b")]])
        members = targets.target(a), targets.target(b, cancels_billing=False)
        async with await attempt_group("race", *members, race_billed=billed).send(
            chat_call()
        ) as reply:
            assert await read(reply) == ("b" if billed else "a")
        assert len(b.calls) == billed


async def test_a_whole_answer_is_asked_for_as_a_stream_so_that_losers_stop() -> None:
    targets = Targets()
    a, b = Actor("a", [[5, *whole("a")]]), Actor("b", [never()])
    cases: list[tuple[dict[str, bool], bool]] = [
        ({}, True),
        ({"first_complete": True}, False),
    ]
    for options, fold in cases:
        upstream = attempt_group("race", targets.target(a), targets.target(b), **options)
        async with await upstream.send(chat_call(stream=False)) as reply:
            await read(reply)
        assert (a.calls[-1].streamed_upstream, b.calls[-1].streamed_upstream) == (fold, fold)


async def test_the_first_whole_answer_can_be_made_to_win() -> None:
    targets = Targets()
    hasty = Actor("hasty", [[text("I"), NEVER]])
    cut = Actor("cut", [[text("I")]])
    slow = Actor("slow", [[30, *whole("slow")]])
    assert await race(targets, hasty, cut, slow, first_complete=True) == "slow"
    assert sorted(targets.outcomes()) == [("cut", "broken"), ("hasty", "lost"), ("slow", "won")]


async def test_a_race_for_whole_answers_reads_also_its_only_member_to_the_end() -> None:
    targets = Targets()
    a, cut = Actor("a", [whole("a")]), Actor("cut", [[text("I")]])
    upstream = attempt_group("race", targets.target(a), targets.target(cut), first_complete=True)
    with pytest.raises(UpstreamProtocolError):
        await upstream.send(chat_call(avoid=frozenset("a")))
    assert targets.outcomes() == [("cut", "broken")]


async def test_a_hedge_waits_and_its_budget_is_never_exceeded() -> None:
    targets, extra = Targets(), ExtraBudget(0.1, 1.0)
    slow = RoutingEstimate(
        name="a", samples=100, late_ttft_s=(0.001,) * 8, cost_usd=1.0, waste_usd=0.001
    )
    hedged = 0
    for number in range(60):
        a, b = Actor("a", [[60, *whole("a")]]), Actor("b", [whole("b")])
        upstream = AttemptGroup(
            "h",
            [Candid(targets.target(a), lambda _: slow), Candid(targets.target(b), lambda _: slow)],
            Strategy(strategy="hedge", hedge_floor_s=0.0),
            extra=extra,
            retrying=RetryBudget(),
            draw=lambda: 0.0,
            clock=lambda: UNIX,
        )
        a.scripts = [[asyncio.Event()]] if number % 10 == 9 else [whole("a")]
        if number % 10 == 9 and number < 10:
            continue
        async with asyncio.timeout(5):
            if number % 10 == 9:
                async with await upstream.send(chat_call(f"{number}")) as reply:
                    assert await read(reply) == "b"
                assert set(targets.roles(f"{number}")) == {("a", "first"), ("b", "hedge")}
            else:
                async with await upstream.send(chat_call(f"{number}")) as reply:
                    assert await read(reply) == "a"
        hedged += len(b.calls)
        assert extra.calls_used <= 0.1 + 1e-9
    assert hedged == 5


async def test_a_failure_after_the_loss_charges_no_upstream() -> None:
    class Spiteful(Actor):
        """Answers its cancellation with an error."""

        async def send(self, call: Call) -> Reply:
            try:
                await super().send(call)
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                raise UpstreamUnreachable("torn") from error
            raise AssertionError("it waits for ever")

    targets = Targets()
    loser = Spiteful("loser", [whole("x")])
    for number in range(8):
        upstream = attempt_group(
            "race", targets.target(loser), targets.target(Actor("w", [[5, *whole("w")]]))
        )
        async with await upstream.send(chat_call(f"{number}")) as reply:
            assert await read(reply) == "w"
        assert sorted(targets.outcomes(f"{number}")) == [("loser", "lost"), ("w", "won")]
    assert not targets.target(loser).estimate(chat_call()).degraded


async def test_pieces_are_the_winners_own() -> None:
    targets = Targets()
    body = [Piece(b"1", (TextDelta(text="1"),)), Piece(b"2", (Finished(reason="stop"), Ended()))]
    upstream = attempt_group(
        "race", targets.target(Actor("a", [body])), targets.target(Actor("b", [never()]))
    )
    async with await upstream.send(chat_call()) as reply:
        assert [piece async for piece in reply.pieces] == body
        assert (reply.upstream, reply.status) == ("a", 200)


async def test_only_who_could_be_replaced_has_an_alternative() -> None:
    targets = Targets()
    down_then_up = [Actor("a", [down()]), Actor("b", [down()]), Actor("c", [whole("Hi")])]
    upstream = attempt_group("fallback", *(targets.target(each) for each in down_then_up))
    async with await upstream.send(chat_call()) as reply:
        assert await read(reply) == "Hi"
    assert [each.calls[0].has_alternative for each in down_then_up] == [True, True, False]


async def test_a_lone_upstream_and_a_running_race_get_no_deadline() -> None:
    targets = Targets()
    lone = Actor("a", [whole("Hi")])
    async with await attempt_group("single", targets.target(lone)).send(chat_call()) as reply:
        assert await read(reply) == "Hi"
    racers = [Actor("b", [whole("Hi")]), Actor("c", [whole("Hi")])]
    await race(targets, *racers)
    assert not any(call.has_alternative for each in (lone, *racers) for call in each.calls)


async def test_an_upstream_with_scarce_limits_stands_by_in_a_race() -> None:
    for left, raced in ((b"60", True), (b"40", False)):
        targets = Targets()
        headers = (
            *SSE,
            (b"x-ratelimit-limit-requests", b"100"),
            (b"x-ratelimit-remaining-requests", left),
            (b"x-ratelimit-reset-requests", b"1h"),
        )
        a = Actor("a", [[30, *whole("a")]])
        b = Actor("b", [whole("b"), [10, *whole("b")]], headers=headers)
        target = targets.target(b)
        async with await target.send(chat_call()) as reply:
            assert await read(reply) == "b"
        async with await attempt_group("race", targets.target(a), target).send(
            chat_call()
        ) as reply:
            await read(reply)
        assert len(b.calls) == 1 + raced
