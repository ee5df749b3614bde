"""Spreads connections over the workers: the one with the fewest takes the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from headstart.middleware.concurrency import Supervisor
from headstart.observe import logger

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

YIELD_S = 0.002
"""So long a worker with more connections leaves a new one to the others, which may be busy."""
REST_S = 0.1
"""The wait after the system refused a connection, such as for want of descriptors."""
GONE = 2**62
"""The count of a worker that does not run."""


class Acceptor:
    """Accepts connections on a socket that several workers share.

    ``counts`` is memory of all workers with the connections of each, and ``index`` this one's
    place. ``open_now`` returns how many this worker has.
    """

    def __init__(
        self,
        listening: socket.socket,
        counts: memoryview,
        index: int,
        *,
        open_now: Callable[[], int],
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listening = listening
        self._counts = counts
        self._index = index
        self._open_now = open_now
        self._make = make
        self._opening = Supervisor()
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._coming = 0
        """Connections that were accepted and are not open yet."""
        listening.setblocking(False)  # noqa: FBT003 - the library's signature
        self._watch()

    async def aclose(self) -> None:
        """Accept no more; the socket stays open for the others."""
        self._loop.remove_reader(self._listening.fileno())
        if self._later is not None:
            self._later.cancel()
        await self._opening.ended()
        self._counts[self._index] = GONE

    def _watch(self) -> None:
        self._count()
        self._loop.add_reader(self._listening.fileno(), self._accept, False)  # noqa: FBT003

    def _count(self) -> int:
        mine = self._counts[self._index] = self._open_now() + self._coming
        return mine

    def _accept(self, anyway: bool) -> None:
        """Take connections while no other worker has fewer; the first one ``anyway``."""
        while anyway or self._count() <= min(self._counts):
            anyway = False
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("a connection cannot be accepted: %s", error)
                return self._pause(REST_S, anyway=False)
            connection.setblocking(False)  # noqa: FBT003 - the library's signature
            self._coming += 1
            self._opening.spawn(self._open, connection)
        self._pause(YIELD_S, anyway=True)

    def _pause(self, seconds: float, *, anyway: bool) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._later = self._loop.call_later(seconds, self._go_on, anyway)

    def _go_on(self, anyway: bool) -> None:
        self._later = None
        self._watch()
        if anyway:
            self._accept(True)  # noqa: FBT003

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:
            connection.close()  # the client has left
        finally:
            self._coming -= 1
            self._count()


class ConnectionShare(NamedTuple):
    """A worker's place among the workers, in memory that all of them see."""

    counts: memoryview
    place: int

    def accept(
        self,
        listening: socket.socket,
        *,
        open_now: Callable[[], int],
        make: Callable[[], asyncio.Protocol],
    ) -> Acceptor:
        """Begin to accept. ``open_now`` and ``make`` are those of ``Acceptor``."""
        return Acceptor(listening, self.counts, self.place, open_now=open_now, make=make)
