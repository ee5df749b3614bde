"""Bounded concurrency: so many calls at once, so many waiting, the rest refused."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headstart.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Iterator


class Gate:
    """Admits ``concurrency`` at once and lets ``queue`` wait; ``async with gate:`` is a place.

    ``setting`` names the one that sets ``concurrency``.
    """

    def __init__(
        self, concurrency: int, queue: int, setting: str = "server.max_concurrency"
    ) -> None:
        self._setting = setting
        self._concurrency = concurrency
        self._free = concurrency
        self._queue = queue
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.active = 0

    async def __aenter__(self) -> None:
        """Take a place. Raises Overloaded when the queue is full too."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait()
        self.active += 1

    async def __aexit__(self, *_: object) -> None:
        """Give the place to the next in the queue."""
        self.active -= 1
        self._release()

    @contextmanager
    def spare(self) -> Iterator[None]:
        """Take a place for a call that nobody waits for. Raises Overloaded unless most are free."""
        if self._free <= self._concurrency // 2:
            raise Overloaded(f"half of {self._setting} is in use: the rest is for callers")
        self._free -= 1
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            self._release()

    async def _wait(self) -> None:
        if len(self._waiting) >= self._queue:
            raise Overloaded(
                f"too many calls in flight: {self._setting} and server.max_queue are reached"
            )
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release()
            elif waiter in self._waiting:  # else a place that came free has just passed it over
                self._waiting.remove(waiter)
            raise

    def _release(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
