"""Calls beyond a provider's rate limit wait in a queue, in the order of their arrival."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import openai
import pytest

from support.rate_limited import RateLimited
from support.redis_server import RedisServer, redis_server
from support.sidecar import Provider, sidecar
from support.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.anyio

EXACT = {"mode": "exact-only"}


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


class WindowedProvider(Provider):
    """Answers ``limit`` calls in each window of ``window_s``, and refuses the others.

    ``tells``: headers of each answer, and a wait in each refusal, tell of the limit.
    """

    def __init__(self, limit: int, window_s: float, *, tells: bool = True) -> None:
        super().__init__()
        self.allowed = RateLimited(limit, window_s, windows=True)
        self.tells = tells

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        now = asyncio.get_running_loop().time()
        answers = self.allowed.takes(now)
        limits = self.allowed.headers(now) if self.tells else ()
        if not answers:
            wait = (b"retry-after-ms", b"%d" % (1000 * self.allowed.wait_s(now) + 1))
            headers = [wait, *limits] if self.tells else []
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error":{"message":"limit"}}'})
            return

        async def limited(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message["headers"], *limits]}
            await send(message)

        await super().__call__(scope, receive, limited)


class CrowdedProvider(Provider):
    """Answers ``most`` calls at once, each in some time, and refuses the others."""

    def __init__(self, most: int, answer_s: float) -> None:
        super().__init__()
        self.most = most
        self.answer_s = answer_s
        self.busy = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.busy >= self.most:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            await send({"type": "http.response.body", "body": b'{"error":{"message":"busy"}}'})
            return
        self.busy += 1
        try:
            await asyncio.sleep(self.answer_s)
            await super().__call__(scope, receive, send)
        finally:
            self.busy -= 1


async def test_a_burst_is_answered_by_a_provider_that_takes_few_calls_at_once() -> None:
    provider = CrowdedProvider(4, 0.2)
    async with sidecar(provider, cache=EXACT) as running, asyncio.TaskGroup() as group:
        tasks = [group.create_task(running.ask(f"question {n}")) for n in range(16)]
    assert [task.result().status for task in tasks] == [200] * 16


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
    assert provider.allowed.refused <= 3, (
        "one call in a window finds out that the window is not over"
    )
    overtaken = sum(later < earlier for earlier, later in itertools.pairwise(ended))
    assert overtaken <= provider.allowed.refused, (
        "only the calls that the provider refused lose their turn"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_burst_is_answered_although_nothing_tells_of_the_limit(stream: bool) -> None:
    provider = WindowedProvider(limit=8, window_s=2.0, tells=False)
    async with sidecar(provider, cache=EXACT) as running:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(running.ask(f"question {number}", stream=stream))
                for number in range(24)
            ]
        assert [task.result().status for task in tasks] == [200] * 24
        attempts = [attempt for row in running.served for attempt in row.attempts]
    assert provider.allowed.refused <= 48, "few calls ask too early"
    refused = [each for each in attempts if each.error == "rate-limited"]
    assert len(refused) == provider.allowed.refused, "each refusal is in the books"


async def test_a_provider_that_answers_nobody_gets_few_calls_and_its_refusal_is_passed_on() -> None:
    provider = WindowedProvider(limit=0, window_s=60.0, tells=False)
    async with sidecar(provider, cache=EXACT) as running:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await running.ask("question")).status == 429
        assert loop.time() - began < 3.0
    assert provider.allowed.refused <= 2


@pytest.mark.parametrize("answered", [0, 1], ids=["answers nobody", "answered one"])
async def test_a_lasting_limit_is_told_to_an_sdk_on_its_defaults_in_seconds(answered: int) -> None:
    provider = WindowedProvider(limit=answered, window_s=600.0, tells=False)
    async with (
        sidecar(provider, cache=EXACT) as running,
        openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="sk-test") as client,
    ):
        for number in range(answered):
            assert (await running.ask(f"question {number}")).status == 200
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "one more question"}]
            )
        assert loop.time() - began < 12.0
    assert 3 <= provider.allowed.refused <= 5, "as many tries as the SDK makes without us, or more"


@pytest.mark.parametrize("tells", [True, False])
async def test_a_client_that_leaves_the_queue_takes_no_call(tells: bool) -> None:
    provider = WindowedProvider(limit=2, window_s=1.0, tells=tells)
    async with sidecar(provider, cache=EXACT) as running, asyncio.TaskGroup() as group:
        for number in range(2):
            assert (await running.ask(f"question {number}")).status == 200
        leaving = [group.create_task(running.ask(f"left {n}")) for n in range(16)]
        await asyncio.sleep(0.2)
        for each in leaving:
            each.cancel()
        staying = [group.create_task(running.ask(f"stays {n}")) for n in range(2)]
        assert [(await each).status for each in staying] == [200, 200]
        assert provider.calls == 4


async def test_a_call_that_would_queue_for_over_a_minute_is_refused_at_once() -> None:
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
        # A busy machine can stop everything for half a second, and a node whose store times out
        # goes on alone: the tests of a failing store are elsewhere.
        cache = {**EXACT, "store": f"{redis.url}?socket_timeout=10"}
        found = [
            await stack.enter_async_context(sidecar(upstream={"base_url": base}, cache=cache))
            for _ in range(3)
        ]
        loop = asyncio.get_running_loop()
        left_s = 0.0
        while left_s < 1.0:  # a call that leaves at the end of a window can arrive in the next one
            await asyncio.sleep(left_s)
            ends = loop.time() + 2.0
            for number in range(6):  # the nodes learn the limit, and that it is a window
                assert (await found[number % 3].ask(f"{ends} {number}")).status == 200
            left_s = ends - loop.time()
        provider.allowed.refused = 0
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(found[number % 3].ask(f"question {number}", stream=stream))
                for number in range(30)
            ]
        assert [task.result().status for task in asked] == [200] * 30
        assert provider.allowed.refused == 0
