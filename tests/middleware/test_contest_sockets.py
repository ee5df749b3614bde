"""Contests on real sockets: what providers see of a race, a hedge and a client that leaves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from headstart.middleware.upstreams.conditions import Conditions
from headstart.middleware.upstreams.contest import Contest, ContestOptions
from headstart.middleware.upstreams.http import HTTPOptions, HTTPUpstream
from headstart.middleware.upstreams.ledger import Ledger
from headstart.middleware.upstreams.rescue import Rescued
from headstart.middleware.upstreams.target import Target, TargetOptions
from headstart.policies.routing.hedging import ExtraBudget
from headstart.policies.routing.retries import RetryBudget
from support.candidates import DIALECTS, UNIX, chat_call, read
from support.scripted import ScriptedUpstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.serving import ASGIApp

    Serve = Callable[[ASGIApp], Awaitable[str]]

pytestmark = pytest.mark.anyio

PATIENCE_S = 10.0


@contextlib.asynccontextmanager
async def strategy(
    serve: Serve, name: Any, apps: list[ScriptedUpstream], ledger: Ledger, **options: Any
) -> AsyncIterator[Rescued]:
    """Serve the apps and run a strategy over them."""
    conditions = Conditions()
    async with contextlib.AsyncExitStack() as stack:
        members = []
        for number, app in enumerate(apps):
            place = HTTPOptions(f"p{number}", await serve(app), dialect="openai-chat")
            upstream = HTTPUpstream(place, DIALECTS)
            stack.push_async_callback(upstream.aclose)
            chosen = TargetOptions(place.name)
            members.append(Target(upstream, chosen, conditions, ledger, DIALECTS, lambda: UNIX))
        contest = Contest(
            name,
            members,
            ContestOptions(name, **options),
            ledger=ledger,
            extra=ExtraBudget(1.0, 1.0),
            retrying=RetryBudget(),
            draw=lambda: 0.0,
            clock=lambda: UNIX,
        )
        async with asyncio.timeout(PATIENCE_S):
            yield Rescued(contest, DIALECTS)


def silent() -> ScriptedUpstream:
    """Return a provider that sends headers and a role, then nothing."""
    app = ScriptedUpstream()
    app.words = ["", "never"]
    app.hold = asyncio.Semaphore(0)
    return app


async def test_losers_sockets_close_while_the_winner_streams(serve: Serve) -> None:
    winner, ledger = ScriptedUpstream(), Ledger()
    winner.hold = asyncio.Semaphore(0)
    losers = [silent(), silent()]
    losers[1].head_hold = asyncio.Event()  # not even headers
    async with (
        strategy(serve, "race", [*losers, winner], ledger) as race,
        race.stream(chat_call()) as reply,
    ):
        for loser in losers:
            await loser.calls[0].left.wait()
        for _ in winner.words:
            winner.hold.release()
        assert await read(reply) == "Hello from upstream"
    assert sorted((each.upstream, each.outcome.value) for each in ledger.take("call")) == [
        ("p0", "lost"),
        ("p1", "lost"),
        ("p2", "won"),
    ]


async def test_a_client_that_leaves_closes_every_socket(serve: Serve) -> None:
    apps, ledger = [silent(), silent()], Ledger()
    async with strategy(serve, "race", apps, ledger) as race:

        async def ask() -> None:
            async with race.stream(chat_call()):
                pytest.fail("entered")

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask())
            while not all(app.calls for app in apps):
                await asyncio.sleep(0.001)
            asked.cancel()
        for app in apps:
            await app.calls[0].left.wait()
    assert [each.outcome for each in ledger.take("call")] == ["abandoned"] * 2


async def test_a_hedge_takes_over_from_a_provider_that_stalls(serve: Serve) -> None:
    stalled, ledger = silent(), Ledger()
    apps = [stalled, ScriptedUpstream()]
    async with strategy(serve, "hedge", apps, ledger) as hedge:
        call = chat_call(deadline=asyncio.get_running_loop().time() + 0.2)
        async with hedge.stream(call) as reply:
            assert await read(reply) == "Hello from upstream"
        await stalled.calls[0].left.wait()
    assert sorted((each.upstream, each.role.value) for each in ledger.take("call")) == [
        ("p0", "first"),
        ("p1", "hedge"),
    ]


async def test_a_whole_answer_of_a_race_is_folded_from_the_winners_stream(serve: Serve) -> None:
    winner, loser, ledger = ScriptedUpstream(), silent(), Ledger()
    async with strategy(serve, "race", [loser, winner], ledger) as race:
        async with race.stream(chat_call(stream=False)) as reply:
            body = b"".join([piece.data async for piece in reply.chunks()])
        await loser.calls[0].left.wait()
    assert b'"Hello from upstream"' in body
    assert loser.calls[0].json["stream"] is True


async def test_a_cut_stream_is_rescued_over_real_connections(serve: Serve) -> None:
    cut, whole, ledger = ScriptedUpstream(), ScriptedUpstream(), Ledger()
    cut.terminal = False
    cut.words = cut.words[:2]
    async with (
        strategy(serve, "fallback", [cut, whole], ledger) as fallback,
        fallback.stream(chat_call()) as reply,
    ):
        stream = b"".join([piece.data async for piece in reply.chunks()])
    assert stream.count(b"[DONE]") == 1
    assert b" upstream" in stream
    assert stream.count(b"Hello") == 1
    assert [each.outcome for each in ledger.take("call")] == ["broken", "won"]
