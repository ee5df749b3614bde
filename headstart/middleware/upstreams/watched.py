"""An answer after its first content: every wait is bounded, and its end has to be an end."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from headstart.errors import HeadstartError, UpstreamProtocolError, UpstreamTimeout
from headstart.middleware.upstreams.opening import judge, reported
from headstart.middleware.upstreams.options import AFTER_END_S
from headstart.policies.routing.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from headstart.interfaces import Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.opening import Progress
    from headstart.middleware.upstreams.patience import Patience
    from headstart.middleware.upstreams.recording import Recording

KEPT_ALIVE = 4
"""Stall limits for which pings and comments alone are waited for: they tell that the connection
lives, while the model may think between two blocks, or hang."""


class WatchedReply:
    """A target's answer: the held pieces, then the live ones. ``chunks`` may be called once.

    Raises UpstreamTimeout when no piece comes for ``stall_s``, none that says anything for
    ``KEPT_ALIVE`` times as long, or the call's deadline is over; UpstreamProtocolError or
    UpstreamRefused when the answer breaks off: never a silent truncation.
    """

    def __init__(
        self,
        reply: UpstreamReply,
        source: AsyncIterator[Chunk],
        held: Sequence[Chunk],
        progress: Progress,
        recording: Recording,
        dialect: Dialect | None,
        *,
        stall_s: float,
        clock: Callable[[], float],
        patience: Patience,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.upstream = reply.upstream
        self.status = reply.status
        self.headers = reply.headers
        self._reply = reply
        self._source = source
        self._held = deque(held)
        self._progress = progress
        self._recording = recording
        self._dialect = dialect
        self._stall_s = stall_s
        self._quiet_s = 0.0
        """Waited for pieces since the last one that said anything."""
        self._clock = clock
        self._patience = patience
        self._close = close
        self._time = asyncio.get_running_loop().time
        self._over = False
        request = recording.call.request
        self._streams = request is not None and request.stream

    @property
    def transforms(self) -> tuple[str, ...]:
        return self._reply.transforms

    @property
    def storable(self) -> bool:
        return self._reply.storable

    def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the pieces. Booked as won when the terminal event came, or else a clean end.

        A stream is booked before its last piece is passed on.
        """
        # No generator: one that is left halfway would outlive its context until it is collected.
        return self

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._held:
            held = self._held.popleft()
            if not self._held and self._progress.ended:
                self._book_stream()
            return held
        if self._over:
            raise StopAsyncIteration
        try:
            piece = await self._next()
        except HeadstartError as error:
            self._over = True
            self._recording.learn(self._progress, self._dialect)
            self._recording.failed(judge(error, self._clock()), self._time())
            # At once, not when the caller leaves: a rescue may run on long after this.
            await self._close()
            raise
        if piece is None:
            self._over = True
            self._book()
            raise StopAsyncIteration
        if self._progress.ended:
            self._book_stream()
        return piece

    def _book_stream(self) -> None:
        # The end of a whole answer may still fail to be translated.
        if self._streams and self._progress.error is None:
            self._book()

    def _book(self) -> None:
        self._recording.learn(self._progress, self._dialect)
        self._recording.ended(self._time())

    async def _next(self) -> Chunk | None:
        """Return the next piece, or None at the clean end."""
        progress, now = self._progress, self._time()
        try:
            piece = await self._patience.within(anext(self._source, None), self._until(now))
        except TimeoutError as error:
            if progress.whole:
                return None
            raise UpstreamTimeout(
                f"upstream {self.upstream} fell silent in its answer", kind=FailureKind.STALLED
            ) from error
        if piece is None:
            if self._dialect is not None and progress.content and not progress.whole:
                raise UpstreamProtocolError(
                    f"upstream {self.upstream} ended before its answer did", kind=FailureKind.CUT
                )
            return None
        came = self._time()
        if piece.events:
            self._quiet_s = 0.0
            progress.feed(piece.events)
            if progress.error is not None and self._dialect is not None:
                raise reported(progress.error, self._reply, self._dialect, self._recording.call.id)
        elif self._dialect is not None:
            self._quiet_s += came - now
        self._recording.piece(came)
        return piece

    def _until(self, now: float) -> float:
        if self._progress.whole:
            # The source bounds this by itself, where it can still say how the answer ends.
            limit_s = 2 * AFTER_END_S
        else:
            limit_s = min(self._stall_s, KEPT_ALIVE * self._stall_s - self._quiet_s)
        deadline = self._recording.call.deadline
        return now + limit_s if deadline is None else min(now + limit_s, deadline)
