"""Upstream calls that run in tasks of their own, while another task reads their answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headstart.reply import read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headstart.interfaces import Upstream
    from headstart.reply import Closing, Reply
    from headstart.types import Call


class CallTask:
    """One call, sent and closed in one task, though another task reads its answer.

    ``changed`` is called once, on the loop, when ``reply`` or ``error`` is known. With ``whole``
    the answer counts only once it was read to its end. An error while the reply is closed fails
    nobody: the answer was read, or given up.
    """

    def __init__(
        self,
        upstream: Upstream,
        call: Call,
        changed: Callable[[CallTask], None] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.call = call
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self._changed = changed
        self._whole = whole
        self._known = asyncio.Event()
        self._released = asyncio.Event()
        self._cancelled = False
        self._closing: Closing | None = None
        keeping = asyncio.create_task(  # noqa: TID251 - its maker owns it, and awaits its end
            self._keep(upstream)
        )
        self._task: asyncio.Task[None] | None = keeping

    async def answer(self) -> Reply:
        """Return the answer once it has begun, or ended if ``whole``. Raises its error."""
        await self._known.wait()
        if self.reply is None:
            assert self.error is not None
            raise self.error
        return self.reply

    def hand_on(self, closing: Closing) -> Reply:
        """Return the reply to a reader who closes it by ``closing``; this task waits for that."""
        reply = self.reply
        assert reply is not None
        self._closing, reply.closing = reply.closing, closing
        return reply

    def release(self) -> None:
        """Close the reply in order."""
        self._released.set()

    def cancel(self) -> None:
        """Abort the call now. Only once, because closing may take some turns of the loop."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until the call was closed, and so is booked."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _keep(self, upstream: Upstream) -> None:
        try:
            reply = await upstream.send(self.call)
            self._closing = reply.aclose
            failure: BaseException | None = None
            try:
                if self._whole:
                    await read_whole(reply)
                self.reply = reply
                self._tell()
                await self._released.wait()
            except BaseException as error:
                failure = error
                raise
            finally:
                if self._closing is not None:
                    await self._closing(failure)
        except Exception as error:  # noqa: BLE001 - handed over, whatever it is
            if self.reply is None:
                self.error = error
                self._tell()
        finally:
            # A cancelled task keeps its traceback, which leads back here: a cycle for each loser.
            self._task = None

    def _tell(self) -> None:
        self._known.set()
        if self._changed is not None:
            self._changed(self)


async def all_ended(tasks: Iterable[CallTask]) -> None:
    """Wait until all calls were closed, also when the waiting task is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        while True:
            try:
                await task.ended()
            except asyncio.CancelledError as error:
                cancelled = error
            else:
                break
    if cancelled is not None:
        raise cancelled
