"""Single-flight: identical calls in flight share one upstream call.

A flight belongs to no client. Its pump reads the upstream and appends to a bounded replay log;
each client reads the log at its own pace: a latecomer gets what was already streamed at once and
the rest live. The last client to leave cancels the pump, unless the answer is whole by then: a
whole answer is always stored. Once the log is full nobody may join,
pieces that every client has read are dropped, a lone client slows the upstream down, and among
several the slowest one is dropped so that it never stalls the others.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headstart.errors import UpstreamError, UpstreamTimeout
from headstart.middleware.body import ClientGone
from headstart.middleware.reading import is_event_stream

if TYPE_CHECKING:
    from collections.abc import Hashable

    import anyio

    from headstart.attempts import Attempt
    from headstart.observe import Shaped
    from headstart.types import Entry, Headers, Origin

LOG_BYTES = 8 * 1024 * 1024
"""Bound of a flight's replay log."""

REST_S = 0.5
"""How long a call may go on when its answer is whole and nobody reads it any more."""

_LATE = "no answer in time: the client's timeout, x-headstart-deadline-ms, or a deadline_s"


class SlowClient(UpstreamError):
    """This client fell behind by more than the log's bound and was dropped."""

    code = "client_too_slow"


@dataclass(slots=True)
class Head:
    """Status and headers of a flight's answer, and what was edited on the way."""

    status: int
    headers: Headers
    upstream: str
    transforms: tuple[str, ...]
    not_stored: str | None = None
    """Why nothing of the answer can be stored, as far as status and headers tell."""
    stream: bool = field(init=False)

    def __post_init__(self) -> None:
        self.stream = is_event_stream(self.headers)


class Client:
    """One reader of a flight, until ``deadline`` (the loop's time). Not thread-safe.

    Its reads raise the flight's error, ClientGone, or UpstreamTimeout past the deadline; what has
    arrived by then can still be read.
    """

    __slots__ = ("_flight", "_gone", "_late", "_timer", "_waiter", "position")

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._gone: BaseException | None = None
        self.position = 0
        """Index of the next piece to read, counted from the start of the answer."""

    @property
    def aborted(self) -> bool:
        return self._gone is not None

    @property
    def has_all(self) -> bool:
        """It has read all of a whole answer."""
        return self._flight.whole and self.position >= self._flight.end

    def wake(self) -> None:
        """Let a pending read look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def abort(self, reason: BaseException) -> None:
        """Make the pending or next read raise ``reason``."""
        self._gone = reason
        self.wake()

    def gone(self) -> None:
        """The client closed its connection."""
        self.abort(ClientGone())

    def expire(self, deadline: float | None) -> None:
        """Wait for nothing after ``deadline``, in the loop's time; None: without end."""
        self.forget_deadline()
        self._late = False
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._be_late)

    def forget_deadline(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _be_late(self) -> None:
        self._late = True
        self.wake()

    async def _wait(self) -> None:
        if self._late:
            raise UpstreamTimeout(_LATE)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def head(self) -> Head:
        """Wait for status and headers."""
        flight = self._flight
        while self._gone is None:
            if flight.head is not None:
                return flight.head
            if flight.error is not None:
                raise flight.error
            await self._wait()
        raise self._gone

    async def read(self) -> bytes:
        """Return everything that arrived since the last read, or ``b""`` at the clean end."""
        flight = self._flight
        while self._gone is None:
            if data := flight.take(self):
                return data
            if flight.error is not None:
                raise flight.error
            if flight.ended:
                return b""
            await self._wait()
        raise self._gone

    async def read_all(self) -> bytes | None:
        """Wait for the end and return the whole body, or None if it outgrows the log's bound."""
        flight = self._flight
        while self._gone is None:
            if flight.error is not None:
                raise flight.error
            if flight.ended:
                return flight.take(self)
            if flight.full:
                return None
            await self._wait()
        raise self._gone


class Flight:
    """One upstream call and its readers.

    The pump sets ``first_content`` (``time.perf_counter`` seconds, as ``began``) when the first
    content passes, ``whole`` before it publishes the answer's last event, ``origin`` and ``entry``
    before it publishes the clean end, and ``attempts`` and ``shaped`` before it publishes any end.
    """

    def __init__(self, log_bytes: int = LOG_BYTES, deadline: float | None = None) -> None:
        self.head: Head | None = None
        self.error: BaseException | None = None
        self.ended = False
        self.full = False
        self.began = time.perf_counter()
        self.first_content: float | None = None
        self.origin: Origin | None = None
        self.attempts: tuple[Attempt, ...] = ()
        self.shaped: tuple[Shaped, ...] = ()
        self.settled = asyncio.Event()
        """Set when no attempt will be added any more."""
        self.whole = False
        """The answer's terminal event was read: nothing that happens now makes it less."""
        self.entry: Entry | None = None
        """What is stored of the answer."""
        self.not_stored: str | None = None
        """Why nothing is."""
        self.reading: anyio.CancelScope | None = None
        """In which the pump reads the answer."""
        self.pump: asyncio.Task[None] | None = None
        self._deadline = deadline
        self._log_bytes = log_bytes
        self._log: list[bytes] = []
        self._dropped = 0
        self._size = 0
        self._clients: list[Client] = []
        self._payer: Client | None = None
        self._claimed = False
        self._room: asyncio.Future[None] | None = None

    def join(self) -> Client:
        """Add a reader that starts at the beginning of the answer."""
        client = Client(self)
        self._clients.append(client)
        self._payer = self._payer or client
        return client

    def leave(self, client: Client) -> bool:
        """Remove a reader; True when it was the last one. The pump is then cancelled.

        It gets ``REST_S`` instead to come to the end of a whole answer.
        """
        client.forget_deadline()
        if client is self._payer and not (self.done or client.has_all):
            self._payer = None
        self._clients.remove(client)
        self._trim()
        if self._clients:
            return False
        if self.pump is not None and not self.done:
            if not self.whole:
                self.pump.cancel()
            elif self.reading is not None:
                self.reading.deadline = asyncio.get_running_loop().time() + REST_S
        return True

    def claim(self, client: Client) -> tuple[Attempt, ...]:
        """Return the attempts if they are this client's to book: once, when it has left.

        They are the first reader's, or, if it left before the end, the last one's.
        """
        if client is self._payer and not self.done:
            self._payer = None
        others = self._clients or self._payer is not None
        if self._claimed or not self.done or (client is not self._payer and others):
            return ()
        self._claimed = True
        return self.attempts

    def lasts(self, deadline: float | None) -> bool:
        """Tell whether the call may go on for half as long as a newcomer would wait.

        It ends by its own ``deadline``, that of its first reader. Both are in the loop's time.
        """
        if self._deadline is None or deadline is None:
            return self._deadline is None
        now = asyncio.get_running_loop().time()
        return self._deadline - now >= (deadline - now) / 2

    @property
    def clients(self) -> int:
        """Number of readers."""
        return len(self._clients)

    @property
    def stored(self) -> bool:
        """The answer is kept for other requests."""
        return self.entry is not None

    @property
    def end(self) -> int:
        """Index of the piece that comes next, counted from the start of the answer."""
        return self._dropped + len(self._log)

    @property
    def done(self) -> bool:
        return self.ended or self.error is not None

    @property
    def joinable(self) -> bool:
        """May a newcomer still get the whole answer?"""
        return not self.full and self.error is None

    def open(self, head: Head) -> None:
        """Publish status and headers."""
        self.head = head
        self._wake_all()

    def finish(self) -> None:
        """Publish the clean end."""
        self.ended = True
        self._wake_all()

    def fail(self, error: BaseException) -> None:
        """Publish a failure: each reader gets what arrived before it, then the error."""
        if not self.done:
            self.error = error
            self._wake_all()

    async def push(self, data: bytes) -> None:
        """Append a piece and wake the readers; waits for room once the log is full."""
        self._size += len(data)
        if self._clients:  # nobody reads an audit's bytes: only what they mean is wanted
            self._log.append(data)
            self._wake_all()
        if self._size > self._log_bytes:
            self.full = True
            await self._make_room()

    async def _make_room(self) -> None:
        self._trim()
        while self._size > self._log_bytes:
            if not self._clients:
                return
            readers = [client for client in self._clients if not client.aborted]
            if len(readers) > 1:
                slowest = min(readers, key=lambda client: client.position)
                slowest.abort(SlowClient("this client reads too slowly and was dropped"))
                slowest.position = self.end
            else:
                self._room = asyncio.get_running_loop().create_future()
                await self._room
                self._room = None
            self._trim()

    def take(self, client: Client) -> bytes:
        """Return what ``client`` has not read yet and move it on."""
        start = client.position - self._dropped
        pieces = self._log[start:]
        if not pieces:
            return b""
        client.position += len(pieces)
        if self.full:
            self._trim()
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _trim(self) -> None:
        if not self.full or not self._clients:
            return
        passed = min(client.position for client in self._clients) - self._dropped
        if passed > 0:
            self._size -= sum(map(len, self._log[:passed]))
            del self._log[:passed]
            self._dropped += passed

    def _wake_all(self) -> None:
        for client in self._clients:
            client.wake()


class Flights:
    """The flights, by join identity."""

    def __init__(self) -> None:
        self._by_identity: dict[Hashable, Flight] = {}

    def __len__(self) -> int:
        return len(self._by_identity)

    def find(self, identity: Hashable, deadline: float | None = None) -> Flight | None:
        """Return a flight that a newcomer may join, who waits until ``deadline``, or None."""
        flight = self._by_identity.get(identity)
        if flight is None or not (flight.joinable and flight.lasts(deadline)):
            return None
        return flight

    def add(self, identity: Hashable, flight: Flight) -> None:
        """Make a flight joinable under ``identity``."""
        self._by_identity[identity] = flight

    def remove(self, identity: Hashable, flight: Flight) -> None:
        """Forget a flight, unless another has taken its place."""
        if self._by_identity.get(identity) is flight:
            del self._by_identity[identity]
