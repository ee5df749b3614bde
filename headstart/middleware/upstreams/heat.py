"""One heat of a contest: members that are asked side by side, the first of which wins."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from headstart.attempts import AttemptOutcome
from headstart.errors import HeadstartError
from headstart.middleware.upstreams.holding import Held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headstart.interfaces import Chunk, Upstream, UpstreamReply
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.types import Call

logger = logging.getLogger("headstart")


class _WonReply:
    """A winner's answer. Its books are closed at its end, so by then who lost had time to book."""

    def __init__(self, reply: UpstreamReply, others: Sequence[Held]) -> None:
        self.upstream = reply.upstream
        self.status = reply.status
        self.headers = reply.headers
        self._reply = reply
        self._others = others

    @property
    def transforms(self) -> tuple[str, ...]:
        return self._reply.transforms

    @property
    def storable(self) -> bool:
        return self._reply.storable

    async def chunks(self) -> AsyncIterator[Chunk]:
        async for piece in self._reply.chunks():
            yield piece
        for other in self._others:
            other.cancel()
        await asyncio.sleep(0)


class Heat:
    """Runs each member in a task of ``group``; the first to enter wins.

    The others are cancelled in the loop's next turn. Only the group's end waits for them.
    ``whole``: only who has answered to the end has entered.
    """

    def __init__(self, group: asyncio.TaskGroup, ledger: Ledger, *, whole: bool) -> None:
        self._group = group
        self._ledger = ledger
        self._whole = whole
        self._runners: dict[Held, int] = {}
        self._failed: list[tuple[int, Exception]] = []
        self._news = asyncio.Event()
        self._winner: Held | None = None

    @property
    def winner(self) -> UpstreamReply | None:
        """The first member's answer."""
        reply = None if self._winner is None else self._winner.reply
        return None if reply is None else _WonReply(reply, self._others)

    def ask(self, member: int, upstream: Upstream, call: Call) -> None:
        """Start a member."""
        held = Held(self._group, upstream, call, self._hear, whole=self._whole)
        self._runners[held] = member

    async def news(self, until: float | None) -> list[tuple[int, Exception]]:
        """Wait until somebody wins or fails, or the loop's time is ``until``; return who failed."""
        if until is None:
            await self._news.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._news.wait()
        self._news.clear()
        failed, self._failed = self._failed, []
        return failed

    def end(self, *, in_order: bool) -> None:
        """The answer was read, or else was given up: leave it, and abort all others."""
        for held in self._runners:
            if in_order and held is self._winner:
                held.release()
            else:
                held.cancel()

    def settle(self) -> None:
        """Forget who lost, when all have ended."""
        for held in self._runners:
            self._ledger.settle(held.call.id, held.call.branch)

    def _hear(self, held: Held) -> None:
        if self._winner is not None:
            self._hear_late(held)
        elif held.error is not None:
            self._failed.append((self._runners[held], held.error))
        else:
            self._winner = held
            for other in self._others:
                self._ledger.rule(other.call.id, other.call.branch, AttemptOutcome.LOST)
        self._news.set()
        if held is self._winner:
            # Its answer goes on its way before the others are unwound.
            asyncio.get_running_loop().call_soon(self._cancel_others)

    @property
    def _others(self) -> list[Held]:
        return [held for held in self._runners if held is not self._winner]

    def _cancel_others(self) -> None:
        for other in self._others:
            other.cancel()

    def _hear_late(self, held: Held) -> None:
        """Another one was faster: an answer is let go, and an error fails nobody."""
        held.release()
        if held.error is not None and not isinstance(held.error, HeadstartError):
            logger.error("an upstream that lost a race failed", exc_info=held.error)
