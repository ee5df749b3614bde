"""The clock of tests marked ``virtual_clock``: it jumps, but never past work that is ready."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from support.virtual_clock import VirtualClockLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

BUSY_S = 0.05


async def in_the_executor(work: Callable[[], object]) -> None:
    await asyncio.to_thread(work)


async def in_a_thread_of_anyio(work: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(work)


async def on_the_loop(work: Callable[[], object]) -> None:
    work()
    for _ in range(3):  # turns in which a timer that is due would fire
        await asyncio.sleep(0)


async def test_a_long_wait_ends_at_once() -> None:
    loop, real = asyncio.get_running_loop(), time.monotonic()
    began = loop.time()
    await asyncio.sleep(3600)
    assert loop.time() - began == pytest.approx(3600)
    assert anyio.current_time() == loop.time()
    assert time.monotonic() - real < 60


async def test_timers_fire_in_their_order() -> None:
    fired = list[str]()

    async def fire(name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        fired.append(name)

    async with asyncio.TaskGroup() as group:
        for name, after_s in (("late", 30), ("soon", 0.001), ("next", 5)):
            group.create_task(fire(name, after_s))
    assert fired == ["soon", "next", "late"]


async def test_a_timer_waits_for_tasks_that_are_ready() -> None:
    async with asyncio.timeout(0.001):
        for _ in range(1000):
            await asyncio.sleep(0)


@pytest.mark.parametrize("run", [in_the_executor, in_a_thread_of_anyio, on_the_loop])
async def test_a_timer_waits_for_work_however_slow(
    run: Callable[[Callable[[], object]], Awaitable[None]],
) -> None:
    async with asyncio.timeout(BUSY_S / 100):
        await run(lambda: time.sleep(BUSY_S))


@pytest.mark.parametrize("of_anyio", [True, False])
async def test_after_the_work_of_a_thread_the_clock_jumps_again(of_anyio: bool) -> None:
    await (in_a_thread_of_anyio if of_anyio else in_the_executor)(threading.get_ident)
    with anyio.move_on_after(60) as wait:
        await asyncio.Event().wait()
    assert wait.cancelled_caught


async def test_a_wait_beside_an_open_socket_is_an_error() -> None:
    async def wait() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0):
            await asyncio.sleep(1)

    def run() -> None:
        with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
            runner.run(wait())

    with pytest.raises(RuntimeError, match="needs the real clock"):
        await asyncio.to_thread(run)
