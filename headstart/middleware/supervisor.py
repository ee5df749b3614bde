"""The one task that owns all shared work: pumps, writers, followers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
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
    """Runs background coroutines in one task group; ``aclose`` cancels what is left.

    A coroutine that raises is logged and dropped: it never takes its siblings down.
    """

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._owner: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Number of background tasks now."""
        return len(self._tasks)

    async def start(self) -> None:
        """Start the owning task in the running loop."""
        ready = asyncio.Event()
        # The owner outlives the request or lifespan call that starts it, so no group can hold it.
        self._owner = asyncio.create_task(  # noqa: TID251
            self._own(ready), name="headstart-supervisor"
        )
        await ready.wait()

    async def _own(self, ready: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            self._group = await stack.enter_async_context(asyncio.TaskGroup())
            ready.set()
            await self._stop.wait()
            for task in self._tasks:
                task.cancel()

    def spawn(
        self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> asyncio.Task[None]:
        """Run ``function(*args)`` in the background, in a copy of the caller's context."""
        if self._group is None or self._stop.is_set():
            raise RuntimeError("the supervisor is not running")
        task = self._group.create_task(_guarded(function, args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Cancel what is left and wait for it. Safe to call twice."""
        self._stop.set()
        if self._owner is not None:
            await self._owner
            self._owner = None


async def _guarded(function: Callable[..., Coroutine[Any, Any, None]], args: Any) -> None:
    try:
        await function(*args)
    except Exception:  # noqa: BLE001 - logged; one failure must not end its siblings
        logger.exception("background task %s failed", getattr(function, "__qualname__", function))
