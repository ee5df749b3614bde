"""What the simulated provider saw, above all of clients that left."""

from __future__ import annotations

from typing import Any

import aiohttp
import anyio
import pytest

from headstart.lab.simulator import ProviderProfile, Simulator
from headstart.lab.simulator.faults import Cut, Stall, Status
from support.patience import until
from support.simulated import chat, exchange, send_raw, simulated

pytestmark = pytest.mark.anyio

HOUR = 3600.0


async def test_calls_are_counted_by_endpoint_and_outcome() -> None:
    simulator = Simulator()
    async with simulated(simulator) as url:
        answered = await exchange(url, chat(stream=True))
        await exchange(url, chat(), {"x-sim-fault": Status(status=500).header()})
        await exchange(url, chat(), {"x-sim-fault": Cut(how="close").header()})
        async with aiohttp.ClientSession() as session, session.get(f"{url}/_sim/stats") as reply:
            seen: dict[str, Any] = await reply.json()
    assert seen["endpoints"] == {"chat": 3}
    assert (seen["calls"], seen["in_flight"]) == (3, 0)
    assert (seen["completed"], seen["broken"], seen["cancelled"]) == (2, 1, 0)
    assert seen["errors"] == 1
    assert seen["bytes_out"] > len(answered.body)
    assert seen["deltas"] >= 40


async def test_a_client_that_leaves_is_seen_at_once_and_dated() -> None:
    now = 1000.0
    simulator = Simulator(fault=Stall(seconds=HOUR, after=3), clock=lambda: now)
    async with simulated(simulator) as url:
        async with await send_raw(url, chat(stream=True)) as stream:
            await stream.receive()
            assert simulator.stats.snapshot().in_flight == 1
            now += 7
        await until(lambda: simulator.stats.snapshot().in_flight == 0)
        now += 5
        seen = simulator.stats.snapshot()
    assert (seen.cancelled, seen.completed) == (1, 0)
    (left,) = seen.cancellations
    assert (left.at, left.after_s, left.ago_s) == (1007.0, 7.0, 5.0)
    assert left.deltas == 3


async def test_a_cancelled_client_call_is_seen_before_its_headers() -> None:
    simulator = Simulator(fault=Stall(seconds=HOUR))
    async with simulated(simulator) as url, aiohttp.ClientSession() as session:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(session.post, f"{url}/v1/chat/completions")
                await until(lambda: simulator.stats.snapshot().in_flight == 1)
                scope.cancel()
        await until(lambda: simulator.stats.snapshot().cancelled == 1)
    assert simulator.stats.snapshot().bytes_out == 0


async def test_a_slow_answer_that_is_not_streamed_can_be_cancelled() -> None:
    simulator = Simulator(ProviderProfile(model="m", ttft_ms=HOUR * 1000))
    async with simulated(simulator) as url:
        async with await send_raw(url, chat()):
            await until(lambda: simulator.stats.snapshot().in_flight == 1)
        await until(lambda: simulator.stats.snapshot().cancelled == 1)


async def test_a_thousand_streams_wait_side_by_side() -> None:
    simulator = Simulator(ProviderProfile(model="m", ttft_ms=1, tokens_per_s=(20, 20)))
    async with simulated(simulator) as url:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def ask() -> None:
                async with session.post(
                    f"{url}/v1/chat/completions", json=chat(stream=True, max_tokens=40)
                ) as response:
                    assert (await response.read()).endswith(b"data: [DONE]\n\n")

            async with anyio.create_task_group() as group:
                for _ in range(1000):
                    group.start_soon(ask)
                await until(lambda: simulator.stats.snapshot().in_flight == 1000)
    assert simulator.stats.snapshot().completed == 1000


async def test_a_reset_starts_counts_draws_and_faults_over() -> None:
    simulator = Simulator(fault=Status(status=503, times=1))
    async with simulated(simulator) as url, aiohttp.ClientSession() as session:

        async def two_calls() -> list[tuple[int, str]]:
            seen = []
            for _ in range(2):
                async with session.post(f"{url}/v1/chat/completions", json=chat()) as response:
                    seen.append((response.status, response.headers["x-request-id"]))
            return seen

        first = await two_calls()
        async with session.post(f"{url}/_sim/reset") as response:
            assert response.status == 200
        assert simulator.stats.snapshot().calls == 0
        assert await two_calls() == first
    assert [status for status, _ in first] == [503, 200]


async def test_a_call_that_a_reset_overtook_is_not_counted() -> None:
    simulator = Simulator(fault=Stall(seconds=HOUR))
    async with simulated(simulator) as url:
        async with await send_raw(url, chat()):
            await until(lambda: simulator.stats.snapshot().in_flight == 1)
            simulator.reset()
        async with await send_raw(url, chat()):
            await until(lambda: simulator.stats.snapshot().in_flight == 1)
        await until(lambda: simulator.stats.snapshot().in_flight == 0)
    assert simulator.stats.snapshot().cancelled == 1


async def test_controls_are_not_calls() -> None:
    simulator = Simulator(fault=Status(status=500))
    async with simulated(simulator) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/_sim/stats") as response:
            assert response.status == 200
        async with session.get(f"{url}/_sim/reset") as response:
            assert response.status == 404
    assert simulator.stats.snapshot().calls == 0
