"""Groups of attempts on real sockets: what providers see of races, hedges and leaving clients."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.middleware.upstreams.attempt_group import AttemptGroup
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.middleware.upstreams.rescue import RescuedCandidate
from headstart.middleware.upstreams.target import Target
from headstart.policies.routing.failures import RetryBudget
from headstart.policies.routing.schedule import ExtraBudget
from headstart.settings import Strategy, UpstreamSettings
from support.candidates import UNIX, Books, chat_call, read
from support.patience import PATIENCE_S
from support.scripted import ScriptedUpstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.serving import ASGIApp

    Serve = Callable[[ASGIApp], Awaitable[str]]

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def strategy(
    serve: Serve, name: Any, apps: list[ScriptedUpstream], **options: Any
) -> AsyncIterator[RescuedCandidate]:
    """Serve the apps and run a strategy over them."""
    states = UpstreamStates()
    async with contextlib.AsyncExitStack() as stack:
        members = []
        for number, app in enumerate(apps):
            place = UpstreamSettings(
                name=f"p{number}", base_url=await serve(app), dialect="openai", cancels_billing=True
            )
            upstream = HTTPUpstream(place)
            stack.push_async_callback(upstream.aclose)
            members.append(Target(upstream, place, states, lambda: UNIX))
        attempt_group = AttemptGroup(
            name,
            members,
            Strategy(strategy=name, **options),
            extra=ExtraBudget(1.0, 1.0),
            retrying=RetryBudget(),
            draw=lambda: 0.0,
            clock=lambda: UNIX,
        )
        async with asyncio.timeout(PATIENCE_S):
            yield RescuedCandidate(attempt_group)


def silent() -> ScriptedUpstream:
    """Return a provider that sends headers and a role, then nothing."""
    app = ScriptedUpstream()
    app.words = ["", "never"]
    app.hold = asyncio.Semaphore(0)
    return app


async def test_losers_sockets_close_while_the_winner_streams(serve: Serve) -> None:
    winner, ledger = ScriptedUpstream(), Books()
    winner.hold = asyncio.Semaphore(0)
    losers = [silent(), silent()]
    losers[1].head_hold = asyncio.Event()  # not even headers
    async with (
        strategy(serve, "race", [*losers, winner]) as race,
        await race.send(chat_call()) as reply,
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
    apps, ledger = [silent(), silent()], Books()
    async with strategy(serve, "race", apps) as race:

        async def ask() -> None:
            async with await race.send(chat_call()):
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
    stalled, ledger = silent(), Books()
    apps = [stalled, ScriptedUpstream()]
    async with strategy(serve, "hedge", apps) as hedge:
        call = chat_call(deadline=asyncio.get_running_loop().time() + 0.2)
        async with await hedge.send(call) as reply:
            assert await read(reply) == "Hello from upstream"
        await stalled.calls[0].left.wait()
    assert sorted((each.upstream, each.role.value) for each in ledger.take("call")) == [
        ("p0", "first"),
        ("p1", "hedge"),
    ]


async def test_a_whole_answer_of_a_race_is_folded_from_the_winners_stream(serve: Serve) -> None:
    winner, loser = ScriptedUpstream(), silent()
    async with strategy(serve, "race", [loser, winner]) as race:
        async with await race.send(chat_call(stream=False)) as reply:
            body = b"".join([piece.data async for piece in reply.pieces])
        await loser.calls[0].left.wait()
    assert b'"Hello from upstream"' in body
    assert loser.calls[0].json["stream"] is True


async def test_a_cut_stream_is_rescued_over_real_connections(serve: Serve) -> None:
    cut, whole, ledger = ScriptedUpstream(), ScriptedUpstream(), Books()
    cut.terminal = False
    cut.words = cut.words[:2]
    async with (
        strategy(serve, "fallback", [cut, whole]) as fallback,
        await fallback.send(chat_call()) as reply,
    ):
        stream = b"".join([piece.data async for piece in reply.pieces])
    assert stream.count(b"[DONE]") == 1
    assert b" upstream" in stream
    assert stream.count(b"Hello") == 1
    assert [each.outcome for each in ledger.take("call")] == ["broken", "won"]
