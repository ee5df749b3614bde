"""Calls that are made while an earlier answer is read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from headstart.middleware.upstreams.holding import Held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.interfaces import Upstream, UpstreamReply
    from headstart.types import Call


class FurtherCalls:
    """Makes calls one after another, each in a task of its own.

    A call's context outlives the step of the reader that began it, and must be left by the task
    that entered it.
    """

    def __init__(self, inner: Upstream, group: asyncio.TaskGroup) -> None:
        self._inner = inner
        self._group = group
        self._held: Held | None = None

    async def begin(self, call: Call) -> UpstreamReply:
        """Make a call; the one before was read to its end. Raises what ``stream`` raises."""
        self.end(in_order=True)
        known = asyncio.Event()
        held = self._held = Held(self._group, self._inner, call, lambda _: known.set())
        await known.wait()
        if held.reply is None:
            assert held.error is not None
            raise held.error
        return held.reply

    def end(self, *, in_order: bool) -> None:
        """The last answer was read, or else is given up."""
        if self._held is not None:
            self._held.release() if in_order else self._held.cancel()
            self._held = None


@asynccontextmanager
async def further_calls(inner: Upstream) -> AsyncIterator[FurtherCalls]:
    """Return a maker of calls; leaving ends the last one."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        calls = FurtherCalls(inner, group)
        try:
            yield calls
        except Exception as error:  # noqa: BLE001 - the group would wrap it
            failure = error
        calls.end(in_order=failure is None)
    if failure is not None:
        raise failure
