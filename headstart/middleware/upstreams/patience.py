"""How long to wait for each piece of an answer, with one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


class Patience:
    """Bounds each wait like ``asyncio.timeout_at``, which sets and clears a timer for each piece.

    That costs more than all else that is done for a piece; here a timer that finds its wait over
    looks again when the current one would be. Cancellation from elsewhere passes, as it does there.
    """

    __slots__ = ("_late", "_looks_at", "_loop", "_task", "_timer", "_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        self._task: asyncio.Task[object] | None = None
        self._until = math.inf
        self._late = False

    async def within(self, wait: Awaitable[T], until: float) -> T:
        """Return what is waited for. Raises TimeoutError at ``until``."""
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        self._until = until
        if until < self._looks_at:
            self._look_at(until)
        self._task = task
        try:
            return await wait
        except asyncio.CancelledError as error:
            if self._late and task.cancelling() <= cancelling + 1:
                raise TimeoutError from error
            raise
        finally:
            self._task = None
            if self._late:
                self._late = False
                task.uncancel()

    def stop(self) -> None:
        """Clear the timer: nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, when: float) -> None:
        self.stop()
        self._looks_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        self._looks_at = math.inf
        if self._task is None:
            return
        if self._loop.time() < self._until:
            self._look_at(self._until)
        elif not self._late:
            self._late = True
            self._task.cancel()
