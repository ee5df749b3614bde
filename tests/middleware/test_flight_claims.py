"""Who pays for the calls of a flight that several requests share."""

from __future__ import annotations

import asyncio

import pytest

from headstart.errors import UpstreamProtocolError
from headstart.middleware.flights import Flight
from support.booked import attempt

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

ATTEMPTS = (attempt(cost_usd=0.5),)


async def test_the_first_reader_pays_though_others_leave_before_it() -> None:
    flight = Flight()
    first, second = flight.join(), flight.join()
    flight.attempts = ATTEMPTS
    flight.finish()
    flight.leave(second)
    assert flight.attempts_to_book(second) == ()
    flight.leave(first)
    assert flight.attempts_to_book(first) == ATTEMPTS


async def test_the_last_reader_pays_when_the_first_left_before_the_end() -> None:
    flight = Flight()
    first, second, third = flight.join(), flight.join(), flight.join()
    flight.leave(first)
    assert flight.attempts_to_book(first) == ()  # nothing has ended yet: nobody knows what it costs
    flight.attempts = ATTEMPTS
    flight.finish()
    flight.leave(second)
    assert flight.attempts_to_book(second) == ()
    flight.leave(third)
    assert flight.attempts_to_book(third) == ATTEMPTS


async def test_the_first_reader_pays_though_it_left_as_soon_as_it_had_the_whole_answer() -> None:
    flight = Flight()
    first, second = flight.join(), flight.join()
    flight.whole = True
    flight.leave(first)
    flight.attempts = ATTEMPTS
    flight.finish()
    flight.leave(second)
    assert flight.attempts_to_book(second) == ()
    assert flight.attempts_to_book(first) == ATTEMPTS


async def test_others_pay_where_the_first_reader_waits_for_the_end_in_vain() -> None:
    flight = Flight()
    first, second = flight.join(), flight.join()
    flight.whole = True
    flight.leave(first)
    assert flight.attempts_to_book(first) == ()
    flight.attempts = ATTEMPTS
    flight.finish()
    flight.leave(second)
    assert flight.attempts_to_book(second) == ATTEMPTS


async def test_no_request_pays_twice_for_one_call() -> None:
    flight = Flight()
    first, second = flight.join(), flight.join()
    flight.attempts = ATTEMPTS
    flight.finish()
    flight.leave(first)
    assert flight.attempts_to_book(first) == ATTEMPTS
    flight.leave(second)
    assert flight.attempts_to_book(second) == ()
    assert flight.attempts_to_book(first) == ()


async def test_a_call_that_failed_is_paid_all_the_same() -> None:
    flight = Flight()
    reader = flight.join()
    flight.attempts = ATTEMPTS
    flight.fail(UpstreamProtocolError("cut"))
    flight.leave(reader)
    assert flight.attempts_to_book(reader) == ATTEMPTS


async def test_the_last_client_to_leave_books_the_cancelled_call() -> None:
    flight = Flight()
    reader = flight.join()
    begun = asyncio.Event()

    async def pump() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            flight.attempts = ATTEMPTS
            flight.fail(UpstreamProtocolError("the call was cancelled"))
            flight.settle()

    async with asyncio.TaskGroup() as group:
        flight.pump = group.create_task(pump())
        await begun.wait()
        assert flight.leave(reader)
        assert flight.attempts_to_book(reader) == ()
        await flight.wait_settled()
        assert flight.attempts_to_book(reader) == ATTEMPTS
