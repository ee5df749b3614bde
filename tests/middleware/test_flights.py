"""Flights: sharing, latecomers, leaving, bounds."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from headstart.errors import UpstreamProtocolError, UpstreamTimeout
from headstart.middleware.body import ClientGone
from headstart.middleware.flights import Flight, Flights, LazyCondition, SlowClient
from headstart.reply import Reply, replayed

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

REPLY = Reply("sim", 200, ((b"content-type", b"text/event-stream"),), replayed(()))


async def push(flight: Flight, data: bytes) -> None:
    flight.push(data)
    await flight.room()


async def read_to_end(reader: object) -> bytes:
    parts = []
    while data := await reader.read():  # type: ignore[attr-defined]
        parts.append(data)
    return b"".join(parts)


async def test_latecomer_gets_what_was_streamed_at_once_and_the_rest_live() -> None:
    flight = Flight()
    first = flight.join()
    flight.open(REPLY)
    await push(flight, b"one ")
    await push(flight, b"two ")
    assert await first.read() == b"one two "
    late = flight.join()
    assert (await late.reply()).status == 200
    assert await late.read() == b"one two "
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(read_to_end(reader)) for reader in (first, late)]
        await asyncio.sleep(0)
        await push(flight, b"three")
        flight.finish()
    assert [task.result() for task in waiting] == [b"three", b"three"]


async def test_all_that_wait_for_one_condition_hear_of_its_change() -> None:
    condition = LazyCondition()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(condition.wait())
        await asyncio.sleep(0)
        condition.notify()


async def test_a_failure_comes_after_what_arrived_before_it() -> None:
    flight = Flight()
    reader = flight.join()
    flight.open(REPLY)
    await push(flight, b"partial")
    flight.fail(UpstreamProtocolError("cut"))
    assert await reader.read() == b"partial"
    with pytest.raises(UpstreamProtocolError):
        await reader.read()
    with pytest.raises(UpstreamProtocolError):
        await reader.read_all()


async def test_only_the_last_client_to_leave_cancels_the_pump() -> None:
    flight = Flight()
    first, second = flight.join(), flight.join()
    cancelled = asyncio.Event()

    async def pump() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with asyncio.TaskGroup() as group:
        flight.pump = group.create_task(pump())
        await asyncio.sleep(0)
        assert not flight.leave(first)
        await asyncio.sleep(0)
        assert not cancelled.is_set()
        assert flight.leave(second)
        await cancelled.wait()


async def test_a_call_that_its_last_client_has_left_cannot_be_joined() -> None:
    flights, flight = Flights(), Flight()
    flights["question"] = flight
    reader = flight.join()
    async with asyncio.TaskGroup() as group:
        flight.pump = group.create_task(_wait(asyncio.Event()))
        assert flights.find("question") is flight
        flight.leave(reader)
        assert flights.find("question") is None  # its pump has not ended yet


async def test_leaving_a_finished_flight_does_not_cancel_its_pump() -> None:
    flight = Flight()
    reader = flight.join()
    release = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        flight.pump = pump = group.create_task(_wait(release))
        flight.open(REPLY)
        flight.finish()
        flight.leave(reader)
        release.set()
    assert not pump.cancelled()


async def test_clients_that_leave_one_after_the_other_cut_off_the_body_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headstart.middleware.flights.END_GRACE_S", 0.0)
    flight = Flight()
    cut_off: list[bool] = []

    async def pump() -> None:
        flight.is_read = flight.whole = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut_off.append(flight.was_cut_off())

    async with asyncio.TaskGroup() as group:
        flight.pump = group.create_task(pump())
        await asyncio.sleep(0)
        for _ in range(2):  # each is the last client when it leaves, in one turn of the loop
            assert flight.leave(flight.join())
    assert cut_off == [True]


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_client_that_is_gone_stops_waiting() -> None:
    flight = Flight()
    reader = flight.join()
    asyncio.get_running_loop().call_soon(reader.gone)
    with pytest.raises(ClientGone):
        await reader.reply()


async def test_the_deadline_ends_a_wait() -> None:
    flight = Flight()
    reader = flight.join()
    reader.set_deadline(asyncio.get_running_loop().time() + 0.01)
    with pytest.raises(UpstreamTimeout):
        await reader.reply()
    flight.open(REPLY)
    await push(flight, b"late")
    assert await reader.read() == b"late"
    with pytest.raises(UpstreamTimeout):
        await reader.read()


async def test_a_full_log_is_not_joinable_and_slows_a_lone_client_upstream_down() -> None:
    flight = Flight(log_bytes=10)
    reader = flight.join()
    flight.open(REPLY)
    async with asyncio.TaskGroup() as group:
        pushing = group.create_task(push(flight, b"x" * 11))
        await asyncio.sleep(0)
        assert not pushing.done()
        assert not flight.joinable
        assert await reader.read() == b"x" * 11
    assert pushing.done()
    await push(flight, b"y")
    flight.finish()
    assert await read_to_end(reader) == b"y"


async def test_the_slowest_of_several_is_dropped_at_the_bound() -> None:
    flight = Flight(log_bytes=10)
    quick, slow = flight.join(), flight.join()
    flight.open(REPLY)
    await push(flight, b"a" * 8)
    assert await quick.read() == b"a" * 8
    async with asyncio.TaskGroup() as group:
        group.create_task(push(flight, b"b" * 8))
        await asyncio.sleep(0)
        assert await quick.read() == b"b" * 8
    with pytest.raises(SlowClient):
        await slow.read()
    await push(flight, b"c")
    flight.finish()
    assert await read_to_end(quick) == b"c"


async def test_read_all_gives_up_when_the_answer_outgrows_the_log() -> None:
    flight = Flight(log_bytes=4)
    reader = flight.join()
    flight.open(REPLY)
    async with asyncio.TaskGroup() as group:
        group.create_task(push(flight, b"12345"))
        assert await reader.read_all() is None
        assert await reader.read() == b"12345"


async def test_nothing_is_kept_of_an_answer_that_nobody_reads() -> None:
    flight = Flight(log_bytes=10)
    flight.open(REPLY)
    await push(flight, b"x" * 6)
    await push(flight, b"x" * 6)
    flight.finish()
    assert flight.full
    assert flight.take(flight.join()) == b""


async def test_flights_are_found_until_removed_and_never_by_another() -> None:
    flights, one, two = Flights(), Flight(), Flight()
    flights["k"] = one
    assert flights.find("k") is one
    flights.remove("k", two)
    assert flights.find("k") is one
    flights.remove("k", one)
    assert flights.find("k") is None


async def test_an_answer_leaves_memory_with_its_last_reader_and_needs_no_collector() -> None:
    flight = Flight()
    reader = flight.join()
    flight.open(REPLY)
    await push(flight, b"one")
    flight.finish()
    assert await read_to_end(reader) == b"one"
    flight.leave(reader)
    flight.attempts_to_book(reader)
    answer = weakref.ref(flight)
    gc.disable()
    try:
        del flight, reader
        assert answer() is None
    finally:
        gc.enable()


async def test_a_reader_knows_that_nothing_follows_its_last_piece() -> None:
    flight = Flight()
    reader = flight.join()
    flight.open(REPLY)
    await push(flight, b"one")
    assert await reader.read() == b"one"
    assert not reader.at_end
    await push(flight, b"two")
    flight.finish()
    assert not reader.at_end
    assert await reader.read() == b"two"
    assert reader.at_end
