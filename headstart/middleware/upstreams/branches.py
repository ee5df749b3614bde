"""One of several calls that are made for a request, awaited by name rather than raced."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headstart.middleware.upstreams.holding import Held

if TYPE_CHECKING:
    from headstart.interfaces import Candidate, UpstreamReply
    from headstart.types import Call


class Branch:
    """A member's call. ``whole``: it is left once its answer was read to its end."""

    def __init__(
        self, group: asyncio.TaskGroup, member: Candidate, call: Call, *, whole: bool
    ) -> None:
        self.call = call
        self._whole = whole
        self._known = asyncio.Event()
        self._held = Held(group, member, call, self._hear, whole=whole)

    @property
    def answered(self) -> bool:
        return self._held.reply is not None

    def asks_logprobs(self, original: Call) -> bool:
        """Whether this call asks for log-probabilities that its original did not ask for."""
        return self.call.request is not original.request

    async def reply(self) -> UpstreamReply:
        """Return the answer once it has begun, or ended if ``whole``. Raises its error."""
        await self._known.wait()
        if self._held.error is not None:
            raise self._held.error
        assert self._held.reply is not None
        return self._held.reply

    async def give_up(self) -> None:
        """Abort the call, and wait until it is booked."""
        self._held.cancel()
        await self._held.ended()

    def end(self, *, in_order: bool) -> None:
        """Leave the call, or abort it."""
        if in_order:
            self._held.release()
        else:
            self._held.cancel()

    def _hear(self, held: Held) -> None:
        if self._whole:
            held.release()
        self._known.set()
