"""An event loop whose clock jumps, for tests that wait but use no sockets and no own threads.

The clock stands still while anything is ready to run. When nothing is, it jumps to the next
timer. So a wait costs no time, and a busy machine never lets a timer fire too early.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

from anyio.to_thread import current_default_thread_limiter

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

BEGINS_AT_S = 1000.0
"""The time of a new loop. It is not zero, because code may take zero for "never"."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock.

    The clock does not jump while ``asyncio.to_thread``, ``run_in_executor`` or
    ``anyio.to_thread.run_sync`` work. It cannot know of other threads. A wait beside an open
    socket is an error, because nothing says when the other end will answer.
    """

    def __init__(self) -> None:
        self._now_s = BEGINS_AT_S
        self._in_threads: set[asyncio.Future[Any]] = set()
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_s

    def jump(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now_s += seconds

    def threads_work(self) -> bool:
        """Return whether a thread still works for a task of this loop."""
        return bool(self._in_threads or current_default_thread_limiter().borrowed_tokens)

    def run_in_executor(  # type: ignore[override] # newer stubs name the arguments' types
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._in_threads.add(future)
        future.add_done_callback(self._in_threads.discard)
        return future

    async def shutdown_default_executor(self, *_: object) -> None:
        """Wait for the threads without the timer of newer Pythons; the clock would jump to it."""
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the loop's clock forward where another selector would wait."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if events := super().select(0):
            return events
        if len(self.get_map()) > 1:  # the loop's own pipe is one
            raise RuntimeError("a test with sockets needs the real clock: no virtual_clock mark")
        if self._loop.threads_work():
            return super().select(None)
        self._loop.jump(timeout)
        return []
