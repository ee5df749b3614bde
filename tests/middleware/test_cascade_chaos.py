"""With any failures of models and clients: one answer or one error, and each call booked once."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from headstart.errors import HeadstartError, UpstreamError, UpstreamRefused
from headstart.types import Ended, Finished, TextDelta
from support.candidates import Actor, Step, Targets, chat_call, read, say, whole
from support.cascades import REFUSAL, asking, cascade

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from headstart.middleware.upstreams.cascade import Cascade

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

SEEDS = 400
JUDGES = ("refusal", "format", "prompt", "agreement", "logprob")


def script(chance: random.Random, words: str) -> list[Step]:
    """Return an answer, or one of the ways in which there is none; waits in between."""
    answer = whole(words, "more")
    refused = UpstreamRefused("no", status=chance.choice([400, 500]), headers=(), body=b"", code="")
    ways: list[list[Step]] = [
        answer,
        answer,
        whole(REFUSAL),
        [],
        [refused],
        answer[:2],
        [*answer[:2], UpstreamError("gone")],
        [*answer[:2], asyncio.Event()],
        [say(Finished(reason="content_filter"), Ended())],
        [say(TextDelta(text="cut")), say(Finished(reason="length"), Ended())],
    ]
    chosen = list(chance.choice(ways))
    chosen.insert(chance.randint(0, len(chosen)), chance.randint(0, 30))
    return chosen


def actor(chance: random.Random, name: str) -> Actor:
    return Actor(name, [script(chance, name) for _ in range(4)], before=[chance.randint(0, 20)])


async def ask(upstream: Cascade, chance: random.Random) -> str | None:
    """Return the text of an answer, or None for an error. Some clients leave halfway."""
    call = asking("What?") if chance.random() < 0.5 else chat_call(stream=chance.random() < 0.5)
    try:
        async with await upstream.send(call) as reply:
            if chance.random() < 0.1:
                return None
            return await read(reply)
    except HeadstartError:
        return None


async def run(asking: Coroutine[Any, Any, str | None], turns: int) -> str | None:
    """Return what a client was told, or None if it left after so many turns of the loop."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asking)
        while not task.done() and turns:
            turns -= 1
            await asyncio.sleep(0)
        task.cancel()
    return None if task.cancelled() else task.result()


@pytest.mark.parametrize("part", range(4))
async def test_a_cascade_keeps_its_promises_in_any_weather(part: int) -> None:
    for seed in range(part, SEEDS, 4):
        chance = random.Random(seed)
        targets, fast, slow = Targets(), actor(chance, "fast"), actor(chance, "slow")
        options: dict[str, Any] = {
            "judge": tuple(chance.sample(JUDGES, chance.randint(0, 4))),
            "min_confidence": chance.choice([0.1, 0.6, 0.99]),
            "escalate_early": chance.random() < 0.5,
            "draw": chance.choice([0.0, 1.0]),
        }
        upstream = cascade(targets, fast, slow, **options)
        for _ in range(chance.randint(0, 20)):
            request = chat_call().request
            assert request is not None
            await upstream.panel.judge_draft(request, None, None)
        said = await run(ask(upstream, chance), chance.choice([chance.randint(1, 60), 500]))
        where = f"seed {seed}: {said!r} {targets.outcomes()}"
        if said is not None:
            assert said in ("fastmore", "slowmore", REFUSAL, "cut"), f"{where}: mixed"
        assert fast.open == slow.open == 0, where
        outcomes = targets.outcomes()
        assert len(outcomes) == len(fast.calls) + len(slow.calls), where
        assert [outcome for _, outcome in outcomes].count("won") <= 1, where
        assert said is None or "won" in [outcome for _, outcome in outcomes], where
        targets.ledger.take("call")
