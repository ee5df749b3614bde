"""Contests: who wins, who is asked, what ends, what is booked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headstart.attempts import Outlook
from headstart.errors import (
    UpstreamRefused,
    UpstreamUnavailable,
    UpstreamUnreachable,
)
from headstart.middleware.reading import Piece
from headstart.middleware.upstreams.contest import Contest, ContestOptions
from headstart.middleware.upstreams.opening import AnswerWithheld
from headstart.policies.routing.hedging import ExtraBudget
from headstart.policies.routing.retries import RetryBudget
from headstart.types import Ended, ErrorReported, Finished, Started, TextDelta
from support.candidates import (
    SSE,
    UNIX,
    Actor,
    Candid,
    House,
    chat_call,
    read,
    say,
    text,
    whole,
)

if TYPE_CHECKING:
    from headstart.interfaces import Candidate
    from support.candidates import Step

pytestmark = pytest.mark.anyio

HEADERS_ONLY = say(Started(id="x"), TextDelta(text=""))
NEVER = 10**9


def contest(house: House, strategy: Any, *members: Candidate, **options: Any) -> Contest:
    return Contest(
        strategy,
        members,
        ContestOptions(strategy, **{"retries": 0, **options}),
        ledger=house.ledger,
        extra=ExtraBudget(1.0, 1.0),
        retrying=RetryBudget(),
        draw=lambda: 0.0,
        clock=lambda: UNIX,
    )


def never() -> list[Step]:
    return [HEADERS_ONLY, asyncio.Event()]


def down() -> list[Step]:
    return [UpstreamUnreachable("down")]


async def race(house: House, *actors: Actor, **options: Any) -> str:
    upstream = contest(house, "race", *(house.target(each) for each in actors), **options)
    async with upstream.stream(chat_call()) as reply:
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
    house, loser = House(), Actor("loser", [steps])
    winner = Actor("winner", [[20, *whole("yes")]])
    assert await race(house, loser, winner) == "yes"
    outcome = "lost" if losing == "headers" else "failed"
    assert sorted(house.outcomes()) == [("loser", outcome), ("winner", "won")]
    assert loser.open == winner.open == 0


async def test_losers_are_cancelled_at_once_and_nobody_waits_for_them() -> None:
    house, unwound = House(), asyncio.Event()

    class Slow(Actor):
        """Takes its time to close."""

        def stream(self, call: Any) -> Any:
            inner = super().stream(call)

            class Context:
                async def __aenter__(self) -> Any:
                    return await inner.__aenter__()

                async def __aexit__(self, *error: Any) -> Any:  # noqa: PYI036 - handed on
                    await unwound.wait()
                    return await inner.__aexit__(*error)

            return Context()

    loser, winner = Slow("loser", [never()]), Actor("winner", [[10, *whole("a", "b")]])
    upstream = contest(house, "race", house.target(loser), house.target(winner))
    async with upstream.stream(chat_call()) as reply:
        assert await read(reply) == "ab"
        assert loser.open == 1
        unwound.set()
    assert loser.open == 0
    assert isinstance(loser.closed[0], asyncio.CancelledError)
    assert len(house.ledger) == 1
    house.ledger.take("call")
    assert len(house.ledger) == 0, "rulings are forgotten with the call"


async def test_the_consumers_cancellation_ends_everything() -> None:
    house = House()
    actors = [Actor(name, [never()]) for name in "abc"]
    nested = contest(house, "race", *map(house.target, actors[1:]))
    upstream = contest(house, "race", house.target(actors[0]), nested)

    async def ask() -> None:
        async with upstream.stream(chat_call()):
            pytest.fail("entered")

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask())
        while sum(each.open for each in actors) < 3:
            await asyncio.sleep(0)
        asked.cancel()
    assert asked.cancelled()
    assert [each.open for each in actors] == [0, 0, 0]
    assert sorted(house.outcomes()) == [(name, "abandoned") for name in "abc"]


async def test_a_consumers_own_error_comes_out_as_it_is() -> None:
    house = House()
    with pytest.raises(ValueError, match="mine"):
        async with contest(
            house, "race", *(house.target(Actor(n, [whole("x")])) for n in "ab")
        ).stream(chat_call()):
            raise ValueError("mine")


async def test_a_bug_in_a_member_is_not_hidden() -> None:
    house = House()
    actors = [Actor("a", [[RuntimeError("bug")]]), Actor("b", [never()])]
    with pytest.raises(RuntimeError, match="bug"):
        await race(house, *actors)
    assert [each.open for each in actors] == [0, 0]


async def test_contests_nest() -> None:
    house = House()
    a, b, c = (Actor(n, [s]) for n, s in (("a", never()), ("b", down()), ("c", [5, *whole("c")])))
    hedge = contest(house, "hedge", house.target(b), house.target(c))
    upstream = contest(house, "race", house.target(a), hedge)
    async with upstream.stream(chat_call()) as reply:
        assert await read(reply) == "c"
    assert sorted(house.outcomes()) == [("a", "lost"), ("b", "failed"), ("c", "won")]
    assert sorted(house.roles()) == [("a", "first"), ("b", "race"), ("c", "fallback")]
    assert upstream.names == {"a", "b", "c"}


async def test_a_failed_member_is_retried_then_the_next_one_is_asked() -> None:
    house = House()
    a, b = Actor("a", [down()]), Actor("b", [whole("b")])
    upstream = contest(house, "fallback", house.target(a), house.target(b), retries=1)
    async with upstream.stream(chat_call()) as reply:
        assert await read(reply) == "b"
    assert house.roles() == [("a", "first"), ("a", "retry"), ("b", "fallback")]


def refusal(status: int, message: str) -> UpstreamRefused:
    body = f'{{"error":{{"message":"{message}"}}}}'.encode()
    return UpstreamRefused(message, status=status, headers=(), body=body, code="x")


async def test_the_callers_own_fault_is_handed_over_at_once() -> None:
    house, b = House(), Actor("b", [whole("b")])
    a = Actor("a", [[refusal(400, "bad tool")]])
    upstream = contest(house, "fallback", house.target(a), house.target(b))
    with pytest.raises(UpstreamRefused, match="bad tool"):
        async with upstream.stream(chat_call()):
            pytest.fail("entered")
    assert b.calls == []


async def test_the_first_members_words_are_the_most_useful() -> None:
    house = House()
    actors = [
        Actor("a", [down()]),
        Actor("b", [[refusal(500, "b broke")]]),
        Actor("c", [[refusal(503, "c is full")]]),
    ]
    with pytest.raises(UpstreamRefused, match="b broke") as caught:
        await race(house, *actors)
    assert (b"x-should-retry", b"false") in caught.value.headers


async def test_a_vetoed_answer_comes_before_any_error() -> None:
    house = House()
    actors = [Actor("a", [down()]), Actor("b", [[say(Finished(reason="content_filter"), Ended())]])]
    with pytest.raises(AnswerWithheld):
        await race(house, *actors)


async def test_avoided_members_are_not_asked() -> None:
    house = House()
    a, b = Actor("a", [whole("a")]), Actor("b", [whole("b")])
    upstream = contest(house, "race", house.target(a), house.target(b))
    async with upstream.stream(chat_call(avoid=frozenset("a"))) as reply:
        assert await read(reply) == "b"
    with pytest.raises(UpstreamUnavailable):
        async with upstream.stream(chat_call(avoid=frozenset("ab"))):
            pytest.fail("entered")
    assert a.calls == []


async def test_who_bills_cancelled_calls_races_only_where_the_route_says_so() -> None:
    for billed in (False, True):
        house = House()
        a, b = Actor("a", [[30, *whole("a")]]), Actor("b", [[10, *whole("b")]])
        members = house.target(a), house.target(b, cancels_billing=False)
        async with contest(house, "race", *members, race_billed=billed).stream(
            chat_call()
        ) as reply:
            assert await read(reply) == ("b" if billed else "a")
        assert len(b.calls) == billed


async def test_a_whole_answer_is_asked_for_as_a_stream_so_that_losers_stop() -> None:
    house = House()
    a, b = Actor("a", [[5, *whole("a")]]), Actor("b", [never()])
    cases: list[tuple[dict[str, bool], bool]] = [
        ({}, True),
        ({"fold": False}, False),
        ({"first_complete": True}, False),
    ]
    for options, fold in cases:
        upstream = contest(house, "race", house.target(a), house.target(b), **options)
        async with upstream.stream(chat_call(stream=False)) as reply:
            await read(reply)
        assert (a.calls[-1].fold, b.calls[-1].fold) == (fold, fold)


async def test_the_first_whole_answer_can_be_made_to_win() -> None:
    house = House()
    hasty = Actor("hasty", [[text("I"), NEVER]])
    cut = Actor("cut", [[text("I")]])
    slow = Actor("slow", [[30, *whole("slow")]])
    assert await race(house, hasty, cut, slow, first_complete=True) == "slow"
    assert sorted(house.outcomes()) == [("cut", "broken"), ("hasty", "lost"), ("slow", "won")]


async def test_a_hedge_waits_and_its_budget_is_never_exceeded() -> None:
    house, extra = House(), ExtraBudget(0.1, 1.0)
    slow = Outlook(name="a", samples=100, late_ttft_s=(0.001,) * 8, cost_usd=1.0, waste_usd=0.001)
    hedged = 0
    for number in range(60):
        a, b = Actor("a", [[60, *whole("a")]]), Actor("b", [whole("b")])
        upstream = Contest(
            "h",
            [Candid(house.target(a), lambda _: slow), Candid(house.target(b), lambda _: slow)],
            ContestOptions("hedge", hedge_floor_s=0.0),
            ledger=house.ledger,
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
                async with upstream.stream(chat_call(f"{number}")) as reply:
                    assert await read(reply) == "b"
                assert set(house.roles(f"{number}")) == {("a", "first"), ("b", "hedge")}
            else:
                async with upstream.stream(chat_call(f"{number}")) as reply:
                    assert await read(reply) == "a"
        hedged += len(b.calls)
        assert extra.calls_used <= 0.1 + 1e-9
    assert hedged == 5


async def test_what_fails_after_it_lost_charges_nobody() -> None:
    class Spiteful(Actor):
        """Answers its cancellation with an error."""

        def stream(self, call: Any) -> Any:
            inner = super().stream(call)

            class Context:
                async def __aenter__(self) -> Any:
                    try:
                        reply = await inner.__aenter__()
                        await asyncio.Event().wait()
                    except asyncio.CancelledError as error:
                        raise UpstreamUnreachable("torn") from error
                    else:
                        return reply

                async def __aexit__(self, *error: object) -> None:
                    return None

            return Context()

    house = House()
    loser = Spiteful("loser", [whole("x")])
    for number in range(8):
        upstream = contest(
            house, "race", house.target(loser), house.target(Actor("w", [[5, *whole("w")]]))
        )
        async with upstream.stream(chat_call(f"{number}")) as reply:
            assert await read(reply) == "w"
        assert sorted(house.outcomes(f"{number}")) == [("loser", "lost"), ("w", "won")]
    assert not house.target(loser).outlook(chat_call()).degraded


async def test_pieces_are_the_winners_own() -> None:
    house = House()
    body = [Piece(b"1", (TextDelta(text="1"),)), Piece(b"2", (Finished(reason="stop"), Ended()))]
    upstream = contest(
        house, "race", house.target(Actor("a", [body])), house.target(Actor("b", [never()]))
    )
    async with upstream.stream(chat_call()) as reply:
        assert [piece async for piece in reply.chunks()] == body
        assert (reply.upstream, reply.status) == ("a", 200)


async def test_only_who_could_be_replaced_is_hurried() -> None:
    house = House()
    down_then_up = [Actor("a", [down()]), Actor("b", [down()]), Actor("c", [whole("Hi")])]
    upstream = contest(house, "fallback", *(house.target(each) for each in down_then_up))
    async with upstream.stream(chat_call()) as reply:
        assert await read(reply) == "Hi"
    assert [each.calls[0].hurried for each in down_then_up] == [True, True, False]


async def test_nobody_hurries_a_lone_upstream_or_a_race_that_is_on() -> None:
    house = House()
    lone = Actor("a", [whole("Hi")])
    async with contest(house, "single", house.target(lone)).stream(chat_call()) as reply:
        assert await read(reply) == "Hi"
    racers = [Actor("b", [whole("Hi")]), Actor("c", [whole("Hi")])]
    await race(house, *racers)
    assert not any(call.hurried for each in (lone, *racers) for call in each.calls)


async def test_who_is_rationed_stands_by_in_a_race() -> None:
    for left, raced in ((b"60", True), (b"40", False)):
        house = House()
        headers = (
            *SSE,
            (b"x-ratelimit-limit-requests", b"100"),
            (b"x-ratelimit-remaining-requests", left),
            (b"x-ratelimit-reset-requests", b"1h"),
        )
        a = Actor("a", [[30, *whole("a")]])
        b = Actor("b", [whole("b"), [10, *whole("b")]], headers=headers)
        target = house.target(b)
        async with target.stream(chat_call()) as reply:
            assert await read(reply) == "b"
        async with contest(house, "race", house.target(a), target).stream(chat_call()) as reply:
            await read(reply)
        assert len(b.calls) == 1 + raced
