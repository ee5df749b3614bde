"""The figures that the simulator keeps of each call that has ended."""

from __future__ import annotations

import json

import aiohttp
import pytest

from headstart.lab.simulator import ProviderProfile, Simulator
from headstart.lab.simulator.faults import Stall, Status, Trickle
from headstart.lab.simulator.simulated_calls import CallOutcome
from support.patience import until
from support.simulated import chat, exchange, send_raw, simulated

pytestmark = pytest.mark.anyio

HOUR = 3600.0


async def test_a_cancelled_call_is_dated_and_billed_by_the_providers_rule() -> None:
    now = 1000.0
    simulator = Simulator(fault=Stall(seconds=HOUR, after=3), clock=lambda: now)
    async with simulated(simulator) as url:
        body = chat("x" * 40, stream=True, max_tokens=20)
        headers = {"authorization": "Bearer secret", "x-deadline": "9"}
        async with await send_raw(url, body, headers) as stream:
            await stream.receive()
            now += 7
        await until(lambda: simulator.stats.snapshot().cancelled == 1)
    (record,) = simulator.stats.ended_calls()
    assert (record.at, record.cancelled_at, record.ended_s) == (1000.0, 1007.0, 7.0)
    assert record.outcome is CallOutcome.CANCELLED
    assert (record.endpoint, record.model, record.status, record.fault) == (
        "chat", "m", 200, "Stall",
    )  # fmt: skip
    assert (record.sent_tokens, record.answer_tokens) == (3, 20)
    assert record.billed(cancels_billing=True) == (10, 3)
    assert record.billed(cancels_billing=False) == (10, 20)
    assert record.first_token_s is not None
    assert record.headers["x-deadline"] == "9"
    assert len(record.credential) == 8
    assert "secret" not in str(record)


async def test_errors_cost_nothing_and_whole_answers_all() -> None:
    simulator = Simulator()
    async with simulated(simulator) as url:
        await exchange(url, chat(max_tokens=5))
        await exchange(url, chat(), {"x-sim-fault": Status(status=529).header()})
    whole, failed = simulator.stats.ended_calls()
    assert whole.billed(cancels_billing=True) == (2, 5)
    assert failed.billed(cancels_billing=False) == (0, 0)
    assert (failed.status, failed.fault) == (529, "Status")


async def test_an_unstreamed_call_is_billed_whole_when_it_is_cancelled() -> None:
    simulator = Simulator(ProviderProfile(model="m", ttft_ms=HOUR * 1000))
    async with simulated(simulator) as url:
        async with await send_raw(url, chat(max_tokens=5)):
            await until(lambda: simulator.stats.snapshot().in_flight == 1)
        await until(lambda: simulator.stats.snapshot().cancelled == 1)
    (record,) = simulator.stats.ended_calls()
    assert record.head_s is None
    assert record.billed(cancels_billing=True) == (2, 5)


async def test_records_are_read_over_http_from_a_number_on() -> None:
    async with simulated(Simulator()) as url, aiohttp.ClientSession() as session:
        for _ in range(3):
            await exchange(url, chat())
        async with session.get(f"{url}/_sim/requests?since=1") as response:
            assert [row["number"] for row in await response.json()] == [1, 2]
        async with session.get(f"{url}/_sim/requests?since=x") as response:
            assert response.status == 400
        async with session.get(f"{url}/_sim/requests") as response:
            first = (await response.json())[0]
    assert first["outcome"] == "completed"
    assert first["cancelled_at"] is None


async def test_a_trickle_sends_a_few_bytes_at_a_time_and_loses_none() -> None:
    simulator = Simulator(speed=1000)
    body = chat("hello", stream=True, max_tokens=3)
    async with simulated(simulator) as url:
        whole = await exchange(url, body)
        fault = Trickle(bytes=100, every_s=1)
        slow = await exchange(url, body, {"x-sim-fault": fault.header()})
    assert slow.text == whole.text
    (_, record) = simulator.stats.ended_calls()
    assert record.sent_tokens == 3
    assert record.ended_s >= 0.009, "some ten drops, a simulated second apart"


async def test_keep_alive_bytes_without_a_pause_are_refused() -> None:
    async with simulated(Simulator()) as url:
        wire = await exchange(url, chat(), {"x-sim-fault": '{"fault":"stall","keep_alive_s":0}'})
    assert wire.status == 400
    assert "keep_alive_s has to be above zero" in json.loads(wire.body)["error"]["message"]


async def test_a_trickle_of_nothing_is_refused() -> None:
    async with simulated(Simulator()) as url:
        wire = await exchange(url, chat(), {"x-sim-fault": '{"fault":"trickle","bytes":0}'})
    assert wire.status == 400
    assert "at least one byte" in json.loads(wire.body)["error"]["message"]
