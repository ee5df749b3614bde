"""Nested strategies under random delays, failures and leaving clients: what always holds."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from headstart.errors import HeadstartError, UpstreamUnreachable
from headstart.middleware.upstreams.attempt_group import AttemptGroup
from headstart.middleware.upstreams.rescue import RescuedCandidate
from headstart.policies.routing.failures import RetryBudget
from headstart.policies.routing.measures import UpstreamModel
from headstart.policies.routing.schedule import ExtraBudget
from headstart.settings import Strategy
from headstart.types import Ended, ErrorReported, Finished, Started, TextDelta
from support.candidates import (
    UNIX,
    Actor,
    Step,
    Targets,
    chat_call,
    read,
    say,
)

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

ANSWER = "Once upon a time there was"
OTHER = "Otherwise"
STRATEGIES = ("race", "hedge", "fallback", "fastest", "cheapest")


def steps(draw: random.Random) -> list[Step]:
    """Draw what a provider does: answer, break off, say something else, fail or keep silent."""
    choice, wait = draw.random(), draw.randint(0, 6)
    text = OTHER if choice > 0.95 else ANSWER
    cuts = [0, *sorted(draw.sample(range(1, len(text)), 4)), len(text)]
    words = [text[a:b] for a, b in itertools.pairwise(cuts)]
    pieces = [say(Started(id="x")), *(say(TextDelta(text=word)) for word in words)]
    if choice < 0.4 or choice > 0.95:
        return [wait, *pieces, say(Finished(reason="stop"), Ended())]
    ends: list[Step] = [UpstreamUnreachable("x"), say(ErrorReported(message="e"))]
    if choice < 0.75:
        return [wait, *pieces[: draw.randint(1, len(pieces))], draw.choice(ends)]
    return [wait, draw.choice([*ends, asyncio.Event()])]


def strategy(targets: Targets, draw: random.Random, *members: Any) -> AttemptGroup:
    name: Any = draw.choice(STRATEGIES)
    return AttemptGroup(
        name,
        members,
        Strategy(strategy=name, hedge_floor_s=0.0, first_complete=draw.random() < 0.1),
        extra=ExtraBudget(1.0, 1.0),
        retrying=RetryBudget(),
        draw=lambda: 0.0,
        clock=lambda: UNIX,
    )


async def outcome(upstream: RescuedCandidate, turns: int) -> str:
    """Return the answer, or how there was none; the caller leaves after so many turns."""

    async def ask() -> str:
        async with await upstream.send(chat_call()) as reply:
            return await read(reply)

    async def guarded() -> str:
        try:
            return await ask()
        except HeadstartError:
            return "error"

    async with asyncio.TaskGroup() as group:
        task = group.create_task(guarded())
        for _ in range(turns):
            if task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
    return "left" if task.cancelled() else task.result()


@pytest.mark.parametrize("seed", range(4))
async def test_answers_are_whole_calls_end_and_each_is_booked_once(seed: int) -> None:
    draw, seen = random.Random(seed), set[str]()
    for _ in range(200):
        targets = Targets()
        actors = [Actor(name, [steps(draw) for _ in range(3)]) for name in "abcd"]
        a, b, c, d = map(targets.target, actors)
        inner = strategy(targets, draw, b, c)
        upstream = RescuedCandidate(strategy(targets, draw, a, inner, d))
        got = await outcome(upstream, draw.choice((400, draw.randint(0, 60))))
        seen.add(got)
        attempts = targets.ledger.take("call")
        assert got in {ANSWER, OTHER, "error", "left"}
        assert len(attempts) == sum(len(each.calls) for each in actors)
        assert sum(each.open for each in actors) == 0
        won = sum(each.outcome == "won" for each in attempts)
        assert won == 1 if got in {ANSWER, OTHER} else won <= 1
        assert not any(
            targets.states.measures.in_flight(UpstreamModel(each, "m")) for each in "abcd"
        )
    assert seen == {ANSWER, OTHER, "error", "left"}
