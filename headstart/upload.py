"""The body of a request that is passed on while it arrives, and kept for another upstream."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

KEPT_BYTES = 1024 * 1024
"""The longest body that is kept, so that another upstream can get it."""


class Upload:
    """A body that several upstreams may get, one after the other.

    ``receive`` waits for the next piece; None ends the body. A cancellation of it loses nothing.
    Each reader gets the body from its beginning. Only the newest reader gets anything.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[bytes | None]], kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._receive = receive
        self._kept_bytes = kept_bytes
        self._kept: list[bytes] = []
        self._ended = False
        self._readers = 0
        self.size = 0
        """Bytes that came so far."""

    @property
    def whole(self) -> bool:
        """All that came so far is kept, so that another upstream can get it."""
        return self.size <= self._kept_bytes

    async def read(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives, from its beginning. Only while ``whole`` is true."""
        self._readers += 1
        reader, place = self._readers, 0
        while reader == self._readers:
            if place < len(self._kept):
                place += 1
                yield self._kept[place - 1]
            elif self._ended:
                return
            else:
                piece = await self._receive()
                if piece is None:
                    self._ended = True
                    return
                self.size += len(piece)
                if self.whole:
                    self._kept.append(piece)
                    continue
                self._kept.clear()
                place = 0
                yield piece
