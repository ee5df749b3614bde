"""The owner of all shared work: pumps, writers, followers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from headstart.observe import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Spawn(Protocol):
    """Starts a background coroutine; the task's owner is the supervisor."""

    def __call__(
        self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> asyncio.Task[None]: ...


class Supervisor:
    """Runs background coroutines until they end; ``aclose`` cancels what is left.

    A coroutine that raises is logged and dropped: it never takes its siblings down.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

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
        # No task group: it would take all siblings down with one that fails.
        task = asyncio.get_running_loop().create_task(function(*args))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task %s failed", task.get_coro(), exc_info=error)

    async def aclose(self) -> None:
        """Cancel what is left and wait for it. Safe to call twice."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
