"""One heat of a contest: members that are asked side by side, the first of which wins."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headstart.attempts import AttemptOutcome
from headstart.errors import HeadstartError
from headstart.middleware.upstreams.holding import Held

if TYPE_CHECKING:
    from headstart.interfaces import Upstream, UpstreamReply
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.types import Call

logger = logging.getLogger("headstart")


class Heat:
    """Runs each member in a task of ``group``; the first to enter wins.

    The others are cancelled in the same turn of the loop. Only the group's end waits for them.
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
        return None if self._winner is None else self._winner.reply

    def ask(self, member: int, upstream: Upstream, call: Call) -> None:
        """Start a member."""
        held = Held(self._group, upstream, call, self._hear, whole=self._whole)
        self._runners[held] = member

    async def news(self, until: float | None) -> list[tuple[int, Exception]]:
        """Wait until somebody wins or fails, or the loop's time is ``until``; return who failed."""
        try:
            async with asyncio.timeout_at(until):
                await self._news.wait()
        except TimeoutError:
            pass
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
            for other in self._runners:
                if other is not held:
                    self._ledger.rule(other.call.id, other.call.branch, AttemptOutcome.LOST)
                    other.cancel()
        self._news.set()

    def _hear_late(self, held: Held) -> None:
        """Another one was faster: an answer is let go, and an error fails nobody."""
        held.release()
        if held.error is not None and not isinstance(held.error, HeadstartError):
            logger.error("an upstream that lost a race failed", exc_info=held.error)
