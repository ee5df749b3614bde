"""Calls beyond a provider's rate limit queue for it: who came first is next."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from support.redis_server import redis_server
from support.sidecar import Provider, sidecar
from support.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.anyio

EXACT = {"mode": "exact-only"}


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


class WindowedProvider(Provider):
    """Answers ``limit`` calls in each window of ``window_s``, and refuses the others."""

    def __init__(self, limit: int, window_s: float) -> None:
        super().__init__()
        self.limit = limit
        self.window_s = window_s
        self.refused = 0
        self._ends = 0.0
        self._left = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._ends:
            self._ends, self._left = now + self.window_s, self.limit
        reset = f"{self._ends - now:.3f}".encode()
        if not self._left:
            self.refused += 1
            headers = [(b"retry-after-ms", b"%d" % (1000 * (self._ends - now) + 1))]
            headers += self._limits(reset)
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error":{"message":"limit"}}'})
            return
        self._left -= 1
        limits = self._limits(reset)

        async def limited(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message["headers"], *limits]}
            await send(message)

        await super().__call__(scope, receive, limited)

    def _limits(self, reset: bytes) -> list[tuple[bytes, bytes]]:
        return [
            (b"x-ratelimit-limit-requests", b"%d" % self.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % self._left),
            (b"x-ratelimit-reset-requests", reset + b"s"),
        ]


async def test_a_burst_of_three_windows_is_answered_in_order_without_a_429() -> None:
    provider = WindowedProvider(limit=4, window_s=1.0)
    ended: list[int] = []
    async with sidecar(provider, cache=EXACT) as running:

        async def ask(number: int) -> int:
            reply = await running.ask(f"question {number}")
            ended.append(number)
            return reply.status

        async with asyncio.TaskGroup() as group:
            tasks = []
            for number in range(12):
                tasks.append(group.create_task(ask(number)))
                await asyncio.sleep(0.01)
        assert [task.result() for task in tasks] == [200] * 12
    assert provider.refused <= 3, "one call in a window finds out that the window is not over"
    overtaken = sum(later < earlier for earlier, later in itertools.pairwise(ended))
    assert overtaken <= provider.refused, "only the calls that the provider refused lose their turn"


async def test_a_client_that_leaves_the_queue_takes_no_call() -> None:
    provider = WindowedProvider(limit=2, window_s=1.0)
    async with sidecar(provider, cache=EXACT) as running, asyncio.TaskGroup() as group:
        for number in range(2):
            assert (await running.ask(f"question {number}")).status == 200
        leaving = [group.create_task(running.ask(f"left {n}")) for n in range(20)]
        await asyncio.sleep(0.2)
        for each in leaving:
            each.cancel()
        staying = [group.create_task(running.ask(f"stays {n}")) for n in range(2)]
        assert [(await each).status for each in staying] == [200, 200]
        assert provider.calls == 4


async def test_who_would_queue_for_longer_than_a_minute_is_refused_at_once() -> None:
    provider = WindowedProvider(limit=1, window_s=40.0)
    async with sidecar(provider, cache=EXACT) as running, asyncio.TaskGroup() as group:
        assert (await running.ask("the first")).status == 200
        queued = group.create_task(running.ask("the second"))
        await asyncio.sleep(0.2)
        reply = await running.ask("the third")
        assert reply.status == 429
        assert 60 < int(reply.headers["retry-after"]) <= 80
        assert not queued.done()
        queued.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_three_nodes_share_a_limit_and_no_call_is_refused(
    redis: RedisServer, stream: bool
) -> None:
    provider = WindowedProvider(limit=12, window_s=2.0)
    async with contextlib.AsyncExitStack() as stack:
        base = await stack.enter_async_context(simulated(provider))
        cache = {**EXACT, "store": redis.url}
        found = [
            await stack.enter_async_context(sidecar(upstream={"base_url": base}, cache=cache))
            for _ in range(3)
        ]
        for number in range(6):  # the nodes learn the limit, and that it is a window
            assert (await found[number % 3].ask(f"first {number}")).status == 200
        provider.refused = 0
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(found[number % 3].ask(f"question {number}", stream=stream))
                for number in range(30)
            ]
        assert [task.result().status for task in asked] == [200] * 30
        assert provider.refused == 0
