"""One timer for many waits: a timeout is told from a cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headstart.middleware.upstreams.target import CATCH_UP_S, ReusableTimeout
from headstart.types import Piece
from support.candidates import act
from support.virtual_clock import VirtualClockLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

PIECE = Piece(b"x")


def now() -> float:
    return asyncio.get_running_loop().time()


def stand_still(came: asyncio.Event | None) -> None:
    """Let the process miss a minute, in which a value came that no task has seen yet."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    loop.jump(60)
    if came is not None:
        loop.call_soon(came.set)


async def test_pieces_in_time_come_through_and_the_end_is_none() -> None:
    timeout, source = ReusableTimeout(), act([PIECE, 3, PIECE])
    got = [await timeout.within(anext(source, None), now() + 9) for _ in range(3)]
    timeout.stop()
    assert got == [PIECE, PIECE, None]


async def test_a_late_piece_is_a_timeout_also_after_waits_that_were_not() -> None:
    timeout, source = ReusableTimeout(), act([PIECE, PIECE, asyncio.Event()])
    task = asyncio.current_task()
    assert task is not None
    for _ in range(2):
        await timeout.within(anext(source, None), now() + 0.01)
    await asyncio.sleep(0.02)
    with pytest.raises(TimeoutError):
        await timeout.within(anext(source, None), now() + 0.01)
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_shorter_limit_moves_the_timer() -> None:
    timeout, source = ReusableTimeout(), act([PIECE, asyncio.Event()])
    await timeout.within(anext(source, None), now() + 999)
    async with asyncio.timeout(5):
        with pytest.raises(TimeoutError):
            await timeout.within(anext(source, None), now() + 0.01)


@pytest.mark.parametrize("late_too", [False, True])
async def test_cancellation_from_elsewhere_stays_cancellation(*, late_too: bool) -> None:
    timeout = ReusableTimeout()

    async def wait() -> None:
        until = now() + (0.0 if late_too else 99)
        await timeout.within(anext(act([asyncio.Event()]), None), until)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(wait())
        await asyncio.sleep(0)
        if late_too:
            timeout._fire()
        task.cancel()
    timeout.stop()
    assert task.cancelled()


async def test_a_source_that_answers_its_cancellation_leaves_none_behind() -> None:
    async def stubborn() -> AsyncIterator[Piece]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield PIECE

    task = asyncio.current_task()
    assert task is not None
    assert await ReusableTimeout().within(anext(stubborn(), None), now()) == PIECE
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_value_that_came_while_the_process_stood_still_is_not_late() -> None:
    timeout, came = ReusableTimeout(), asyncio.Event()
    asyncio.get_running_loop().call_later(1, stand_still, came)
    source = act([came, PIECE, asyncio.Event()])
    assert await timeout.within(anext(source), now() + 5) == PIECE
    with pytest.raises(TimeoutError):
        await timeout.within(anext(source), now() + 5)


async def test_a_process_that_stands_still_again_and_again_waits_no_longer() -> None:
    timeout, began, loop = ReusableTimeout(), now(), asyncio.get_running_loop()
    for after_s in (1, 61.2):
        loop.call_at(began + after_s, stand_still, None)
    with pytest.raises(TimeoutError):
        await timeout.within(anext(act([asyncio.Event()]), None), began + 5)
    assert now() == pytest.approx(began + 121.2)


async def test_a_time_that_was_over_before_the_wait_is_not_extended() -> None:
    began = now()
    with pytest.raises(TimeoutError):
        await ReusableTimeout().within(anext(act([asyncio.Event()]), None), began - 60)
    assert now() < began + CATCH_UP_S
