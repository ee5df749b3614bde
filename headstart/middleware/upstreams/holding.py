"""An answer whose context is kept open by a task of its own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from headstart.middleware.upstreams.opening import read_whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from headstart.interfaces import Upstream, UpstreamReply
    from headstart.types import Call

    Found: TypeAlias = tuple[AbstractAsyncContextManager[UpstreamReply], UpstreamReply]


class Held:
    """One call, entered and left in one task of ``group``, though another task reads its answer.

    ``changed`` is called once, on the loop, when ``reply`` or ``error`` is known. ``whole``: the
    answer counts only once it was read to its end. What fails while it is left fails nobody: it
    was read, or given up.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        upstream: Upstream,
        call: Call,
        changed: Callable[[Held], None],
        *,
        whole: bool = False,
    ) -> None:
        self.call = call
        self.reply: UpstreamReply | None = None
        self.error: Exception | None = None
        self._changed = changed
        self._whole = whole
        self._released = asyncio.Event()
        self._cancelled = False
        self._task: asyncio.Task[None] | None = group.create_task(self._keep(upstream))

    def release(self) -> None:
        """Let the context be left in order."""
        self._released.set()

    def cancel(self) -> None:
        """Abort the call now; the group waits for what that takes. Once: closing may take turns."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until the call was left, and so is booked."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _keep(self, upstream: Upstream) -> None:
        try:
            async with upstream.stream(self.call) as reply:
                self.reply = await read_whole(reply) if self._whole else reply
                self._changed(self)
                await self._released.wait()
        except Exception as error:  # noqa: BLE001 - handed over, whatever it is
            if self.reply is None:
                self.error = error
                self._changed(self)
        finally:
            # A cancelled task keeps its traceback, which leads back here: a cycle for each loser.
            self._task = None


class Handed:
    """An answer whose context was entered by whoever found it; leaving leaves that one.

    ``find`` is called when this is entered, and returns an entered context and its answer.
    """

    def __init__(self, find: Callable[[Call], Awaitable[Found]], call: Call) -> None:
        self._find = find
        self._call = call
        self._context: AbstractAsyncContextManager[UpstreamReply]

    async def __aenter__(self) -> UpstreamReply:
        self._context, reply = await self._find(self._call)
        return reply

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace)


class Together(Protocol):
    """Calls that belong to one answer."""

    def end(self, *, in_order: bool) -> None:
        """The answer was read, or else was given up: let go of all calls."""

    def settle(self) -> None:
        """All calls have ended."""


T = TypeVar("T", bound=Together)


@asynccontextmanager
async def tended(make: Callable[[asyncio.TaskGroup], T]) -> AsyncIterator[T]:
    """Run calls in one group; leaving ends them and waits for all.

    The reader's own error comes out as it is, where the group would wrap it.
    """
    failure: Exception | None = None
    group = asyncio.TaskGroup()
    calls = make(group)
    try:
        async with group:
            try:
                yield calls
            except Exception as error:  # noqa: BLE001 - it is raised below
                failure = error
            calls.end(in_order=failure is None)
    finally:
        calls.settle()
    if failure is not None:
        raise failure
