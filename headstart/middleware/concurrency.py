"""Limits on concurrent calls, the owner of all background tasks, and files of several processes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from headstart.embeddings.stores.records import DeletionClock
from headstart.errors import Overloaded
from headstart.observe import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path


class ConcurrencyLimit:
    """Admits ``concurrency`` calls at once and lets ``queue`` calls wait.

    A call holds its place within ``async with limit:``, or from ``take`` to ``give_back``.
    ``setting`` is the name of the setting for ``concurrency``.
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
        self.admits_at_once = True
        """True: a returned place goes to the next call at once. False: ``resize`` gives places
        out."""

    async def __aenter__(self) -> None:
        """Take a place. Raises Overloaded when the queue is full too."""
        if not self.take():
            await self.wait()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    def take(self) -> bool:
        """Take a place, if one is free."""
        if self._free <= 0:
            return False
        self._free -= 1
        self.active += 1
        return True

    def give_back(self) -> None:
        """Give a place back, for the next call in the queue."""
        self.active -= 1
        self._free += 1
        if self._waiting and self.admits_at_once:
            self._admit()

    @property
    def waiting(self) -> int:
        """The calls that wait for a place."""
        return len(self._waiting)

    def resize(self, concurrency: int) -> None:
        """Change the number of calls that are admitted at once. Running calls go on."""
        self._free += concurrency - self._concurrency
        self._concurrency = concurrency
        self._admit()

    def refuse_waiting(self) -> None:
        """Refuse the calls that wait for a place."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(Overloaded("no further call begins"))

    @contextmanager
    def spare(self) -> Iterator[None]:
        """Take a place for a call that no client waits for. Raises Overloaded if half are taken."""
        if self._free <= self._concurrency // 2:
            raise Overloaded(f"half of {self._setting} is in use: the rest is kept for callers")
        self.take()
        try:
            yield
        finally:
            self.give_back()

    async def wait(self) -> None:
        """Wait for a place, and take it. Raises Overloaded when the queue is full too."""
        if len(self._waiting) >= self._queue:
            raise Overloaded(
                f"too many calls in flight: {self._setting} and server.max_queue are reached"
            )
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._free += 1
                self._admit()
            elif waiter in self._waiting:  # if it is not there, ``_admit`` has just removed it
                self._waiting.remove(waiter)
            raise
        self.active += 1

    def _admit(self) -> None:
        """Give free places to calls that wait."""
        while self._free > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._free -= 1
                waiter.set_result(None)


class Spawn(Protocol):
    """Starts a coroutine in a background task, which the supervisor owns."""

    def __call__(
        self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> asyncio.Task[None]: ...


class Supervisor:
    """Runs background tasks until they end; ``aclose`` cancels the remaining ones.

    The error of a task is logged, and the other tasks go on.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.stopping = False
        """True: no new work may begin, only tasks that belong to running ones."""

    @property
    def running(self) -> int:
        """Number of background tasks now."""
        return len(self._tasks)

    def spawn(
        self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> asyncio.Task[None]:
        """Run ``function(*args)`` in the background, in a copy of the caller's context."""
        if self._closed:
            raise RuntimeError("the supervisor is closed")
        if self._loop is None:  # to ask for it costs a call of the system before Python 3.12
            self._loop = asyncio.get_running_loop()
        # A task group would cancel all tasks when one fails.
        task = self._loop.create_task(function(*args))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task %s failed", task.get_coro(), exc_info=error)

    async def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel a task and wait for its end."""
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))

    async def drain(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the end of the tasks, and then do as ``aclose``."""
        self.stopping = True
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the remaining tasks and wait for their end. Safe to call twice."""
        self._closed = self.stopping = True
        for task in self._tasks:
            task.cancel()
        await self.ended()

    async def ended(self) -> None:
        """Wait until no task is left."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))


_LOCKED_AT = 2**31 - 2
"""The locked byte: the last one that Windows can lock. On Windows no other process can read a
locked byte, so it must be beyond the end of the file."""


def lock_file(file: int, *, wait: bool) -> None:
    """Keep other processes that lock the file out, until it is closed.

    Raises OSError if another process has the lock and we do not ``wait``, or if the file system has
    no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        before = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, _LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, before, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


BUSY_S, BUSY_AGAIN_S = 2.0, 0.01
"""Longest wait for a file that somebody reads, and the wait between two tries."""


def replace_file(part: Path, place: Path) -> None:
    """Put ``part`` in the place of a file, as a whole. Raises OSError.

    Windows refuses that while somebody has the file open, so this waits for a moment.
    """
    if sys.platform == "win32":
        until = time.monotonic() + BUSY_S
        while True:
            try:
                part.replace(place)
                break
            except PermissionError:
                if time.monotonic() >= until:
                    raise
            time.sleep(BUSY_AGAIN_S)
    else:
        part.replace(place)


async def delete_regularly(
    clock: Callable[[], float],
    newest: Callable[[], float | None],
    delete: Callable[[float], object],
    failed: Callable[[OSError], object],
    every_s: float,
) -> None:
    """Delete old files, now and every ``every_s`` seconds, until cancelled.

    ``delete`` gets the present Unix time. While the clock seems to be wrong, it gets an earlier
    one, for which it needs the time of the ``newest`` file. Both run in a thread; ``failed`` gets
    their errors.
    """
    deleting = None
    while True:
        try:
            if deleting is None:
                deleting = DeletionClock(clock, last=await asyncio.to_thread(newest))
            await asyncio.to_thread(delete, deleting())
        except OSError as error:
            failed(error)
        await asyncio.sleep(every_s)
