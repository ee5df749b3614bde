"""Single-flight: identical calls in flight share one upstream call.

A flight is one upstream call. It belongs to no client. Its pump (``pump.py``) reads the upstream
and appends the pieces to the flight's log. Each client has a reader, which reads the log at the
client's pace. For example, client A has got the pieces 1 and 2 when client B joins: B gets 1 and 2
at once, and both get piece 3 when it arrives.

A flight goes through these states:

1. **Begun**: there is no ``reply`` yet. Readers wait.
2. **Open** (``open``): status and headers have come; pieces follow (``push``).
3. **Whole** (``whole``): the last event of the answer has come. Only the end of the body is
   missing, so no later failure makes the answer incomplete, and it is stored even if all clients
   leave.
4. **Done**: the body has ended (``finish``), or the call has failed (``fail``).
5. **Settled** (``settle``): the calls of losing attempts have ended, too. All costs are known.

The last client that leaves before the answer is whole cancels the pump.

Once the log is full, nobody may join, and pieces that every client has read are dropped. Then a
lone client slows the upstream down, and of several clients the slowest one is dropped, so that it
does not stop the others.

The last part of this file is about calls that other processes may follow (``shared_flights.py``).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio

from headstart.errors import HeadstartError, UpstreamError, UpstreamTimeout
from headstart.middleware.body import ClientGone
from headstart.middleware.upstreams.outgoing import AFTER_END_S

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headstart.attempts import Attempt, ShapingEffect
    from headstart.dialects.registry import Vectors
    from headstart.middleware.prepare import Prepared
    from headstart.reply import Reply
    from headstart.types import CacheKey, Entry, Lease, Origin

LOG_BYTES = 8 * 1024 * 1024
"""The largest size of a flight's log."""

END_GRACE_S = 0.5
"""Seconds that the body of a whole answer has to end, after the last client has left."""

SETTLE_S = 1.0
"""Longest wait for cancelled calls to end, before the request is booked without them."""

OWN_ALONE = frozenset(("cache-control", "vary"))
"""Reasons not to store an answer that also forbid sharing it (RFC 9111, section 4)."""

_LATE = "no answer in time: the client's timeout, x-headstart-deadline-ms, or a deadline_s"


class SlowClient(UpstreamError):
    """This client was too far behind the answer and was dropped."""

    code = "client_too_slow"


class FlightFigures(Protocol):
    """The figures that a request takes from its flight."""

    started: float
    """Seconds of ``time.perf_counter``. The times below count from here."""
    total_s: float | None
    upstream_s: float | None
    delivered: bool
    origin: Origin | None
    upstream: str
    stored: bool
    not_stored: str | None
    attempts: tuple[Attempt, ...]


class UnaskedCall(Protocol):
    """The call of a live draft, whose answer no client has asked for yet."""

    def adopt(self, key: CacheKey, prepared: Prepared) -> bool:
        """Let the answer be stored; return whether ``store`` has to store it."""

    async def store(self) -> None:
        """Store the answer of a call that had ended."""


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Flight:
    """One upstream call, the log of its answer, and the readers of the log."""

    log_bytes: int = LOG_BYTES
    """The size up to which the log keeps the whole answer."""
    _deadline: float | None = None
    """When the call ends at the latest, in the loop's time; None: no limit."""
    caller: str = ""
    """The name of the key that pays for the call; "": it has none."""

    # The answer. The pump sets ``whole`` before it publishes the last event, ``origin`` and
    # ``entry`` before a clean end, ``attempts`` and ``shaped`` before any end.
    reply: Reply | None = None
    """The answer, as soon as its status and headers are there."""
    began: float = field(default_factory=time.perf_counter)
    first_content: float | None = None
    """When the first content passed, in seconds of ``time.perf_counter``, as ``began``."""
    whole: bool = False
    """The answer's terminal event was read, so no later failure makes the answer incomplete."""
    ended: bool = False
    """The answer has come to its clean end."""
    error: BaseException | None = None
    done: bool = False
    """The answer has ended or failed."""
    origin: Origin | None = None
    entry: Entry | None = None
    """The stored answer."""
    not_stored: str | None = None
    """The reason why the answer is not stored."""
    attempts: tuple[Attempt, ...] = ()
    shaped: tuple[ShapingEffect, ...] = ()
    settled: bool = False
    """No attempt will be added any more."""
    _settling: asyncio.Event | None = None
    """Is set with ``settled``; None: nobody waits for it."""

    # The log: a list of pieces, numbered from the start of the answer.
    end: int = 0
    """The number of the piece that comes next."""
    full: bool = False
    """The answer is larger than the log, so no client may join any more."""
    _log: list[bytes] = field(default_factory=list)
    _dropped: int = 0
    """The number of pieces that were dropped from the beginning of the log."""
    _size: int = 0
    """Bytes in the log."""
    _room: asyncio.Future[None] | None = None
    """Is done when a reader has read from a full log; None: the pump does not wait for it."""

    # The clients
    readers: list[FlightReader] = field(default_factory=list)
    """The clients that have joined and not left."""
    abandoned: bool = False
    """The last client left before the answer was whole, and the pump is about to end."""
    _booking_reader: FlightReader | None = None
    """The reader that books the attempts; None: the next one that joins, or the last one."""
    _booked: bool = False

    # The pump
    pump: asyncio.Task[None] | None = None
    is_read: bool = False
    """The pump reads the answer now."""
    _cut_off: bool = False
    """The pump was cancelled only to end its reading."""

    # Special calls
    followed: bool = False
    """Another process makes the call, stores the answer and books it."""
    owned: OwnedCall | None = None
    """The lease of the call, if other processes may follow it."""
    unasked: UnaskedCall | None = None
    """Set for the call of a live draft, until a client asks for its answer."""
    reading: asyncio.Task[None] | None = None
    """Reads the items of the answer, once for all clients."""
    vectors: Vectors | None = None
    """The items of the answer, which the cache keeps one by one."""

    def join(self, deadline: float | None = None) -> FlightReader:
        """Add a reader that starts at the beginning of the answer, and waits until ``deadline``."""
        reader = FlightReader(self)
        if deadline is not None:
            reader.set_deadline(deadline)
        self.readers.append(reader)
        self._booking_reader = self._booking_reader or reader
        return reader

    def leave(self, reader: FlightReader) -> bool:
        """Remove a reader; return True if it was the last one. The pump is then cancelled.

        If the answer is whole, the pump gets ``END_GRACE_S`` to read the end of the body.
        """
        reader.stop()
        if reader is self._booking_reader and not (self.done or reader.has_all):
            self._booking_reader = None
        self.readers.remove(reader)
        if self.full:
            self._trim()
        if self.readers:
            return False
        if self.pump is not None and not self.done:
            if not self.whole:
                self.abandoned = True
                self.pump.cancel()
            elif self.is_read:
                asyncio.get_running_loop().call_later(END_GRACE_S, self._cut_off_rest)
        return True

    def _cut_off_rest(self) -> None:
        """End the reading of a whole answer whose body does not end. The pump then stores it."""
        # Several clients may have left one after the other, and each has set a timer.
        if self.is_read and self.pump is not None and not self._cut_off:
            self._cut_off = True
            self.pump.cancel()

    def lasts(self, deadline: float | None) -> bool:
        """Tell whether the call may go on for half as long as a new client would wait.

        The deadline of its first reader ends the call. Both deadlines are in the loop's time.
        """
        if self._deadline is None or deadline is None:
            return self._deadline is None
        now = asyncio.get_running_loop().time()
        return self._deadline - now >= (deadline - now) / 2

    @property
    def clients(self) -> int:
        """Number of readers."""
        return len(self.readers)

    @property
    def stored(self) -> bool:
        """The answer is kept for other requests."""
        return self.entry is not None or self.vectors is not None

    @property
    def joinable(self) -> bool:
        """A new client can still get the whole answer."""
        return not self.full and self.error is None and not self.abandoned

    # --- what the pump publishes ------------------------------------------------------------------

    def open(self, reply: Reply) -> None:
        """Publish status and headers."""
        self.reply = reply
        self.wake()

    def finish(self) -> None:
        """Publish the clean end."""
        self.ended = self.done = True
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Publish a failure: each reader gets what arrived before it, then the error."""
        if not self.done:
            if isinstance(error, HeadstartError):
                error.forget_frames()
            self.error = error
            self.done = True
            self.wake()

    def push(self, data: bytes) -> None:
        """Append a piece and wake the readers. Once the log is full, await ``room`` first."""
        self._size += len(data)
        if self.readers:  # the flight of an audit has no readers, and keeps no bytes
            self._log.append(data)
            self.end += 1
            for reader in self.readers:  # as ``wake``, without a call for each piece
                waiter = reader.waiter
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
        if self._size > self.log_bytes:
            self.full = True

    async def room(self) -> None:
        """Wait until a full log has room for more.

        The slowest of several clients is dropped. A lone client is waited for.
        """
        self._trim()
        while self._size > self.log_bytes:
            if not self.readers:
                return
            remaining = [reader for reader in self.readers if not reader.aborted]
            if len(remaining) > 1:
                slowest = min(remaining, key=lambda reader: reader.position)
                slowest.abort(SlowClient("this client reads too slowly and was dropped"))
                slowest.position = self.end
            else:
                self._room = asyncio.get_running_loop().create_future()
                await self._room
                self._room = None
            self._trim()

    def was_cut_off(self) -> bool:
        """Tell the cancelled pump whether only its reading should end.

        If so, the cancellation is undone.
        """
        pump = asyncio.current_task()
        return self._cut_off and pump is not None and not pump.uncancel()

    def settle(self) -> None:
        """Note that no attempt will be added any more."""
        self.settled = True
        if self._settling is not None:
            self._settling.set()

    async def wait_settled(self) -> None:
        """Wait until no attempt will be added any more."""
        if not self.settled:
            self._settling = self._settling or asyncio.Event()
            await self._settling.wait()

    # --- what readers take ------------------------------------------------------------------------

    def take(self, reader: FlightReader) -> bytes:
        """Return the pieces that ``reader`` has not read yet, joined, and move its position."""
        pieces = self._log[reader.position - self._dropped :]
        reader.position = self.end
        if self.full:
            self._trim()
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _trim(self) -> None:
        """Drop the pieces of a full log that every client has read."""
        if not self.full or not self.readers:
            return
        read_by_all = min(reader.position for reader in self.readers) - self._dropped
        if read_by_all > 0:
            self._size -= sum(map(len, self._log[:read_by_all]))
            del self._log[:read_by_all]
            self._dropped += read_by_all

    def wake(self) -> None:
        """Let the pending reads of all clients look again."""
        for reader in self.readers:
            waiter = reader.waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    # --- booking ----------------------------------------------------------------------------------

    def attempts_to_book(self, reader: FlightReader) -> tuple[Attempt, ...]:
        """Return the attempts if this reader has to book them, once, after it has left.

        The first reader books them, or the last reader if the first one left before the end.
        """
        if not self.done and reader is self._booking_reader:
            self._booking_reader = None  # it does not know all attempts
        if self._booked or not self.done:
            return ()
        is_last = not self.readers and self._booking_reader is None
        if reader is not self._booking_reader and not is_last:
            return ()
        self._booked = True
        # Flight and reader would keep each other in memory, and with them the whole answer.
        self._booking_reader = None
        return self.attempts

    def book_apart(self) -> None:
        """Let no reader book the attempts, because the maker of the call books them."""
        self._booked = True


@dataclass(slots=True, eq=False, repr=False)
class FlightReader:
    """One reader of a flight. Not thread-safe.

    A read looks at the flight until there is something to return, and waits for news between two
    looks. It raises the flight's error, ClientGone, or UpstreamTimeout after the deadline. Pieces
    that arrived before an error or the deadline can still be read.
    """

    _flight: Flight
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    waiter: asyncio.Future[None] | None = None
    """Is done when the flight has news for a pending read."""
    position: int = 0
    """The number of the next piece to read, counted from the start of the answer."""
    _timer: asyncio.TimerHandle | None = None
    """Runs at the deadline."""
    _late: bool = False
    """The deadline has passed."""
    _abort_reason: BaseException | None = None

    @property
    def aborted(self) -> bool:
        """Its reads raise the reason of ``abort``."""
        return self._abort_reason is not None

    @property
    def has_all(self) -> bool:
        """The answer is whole, and this reader has all of it."""
        return self._flight.whole and self.position >= self._flight.end

    @property
    def at_end(self) -> bool:
        """The answer has ended, and this reader has all of it."""
        return self._flight.ended and self.position >= self._flight.end

    def abort(self, reason: BaseException) -> None:
        """Make the pending or next read raise ``reason``."""
        self._abort_reason = reason
        self._flight.wake()

    def gone(self) -> None:
        """Note that the client closed its connection."""
        self.abort(ClientGone())

    def stop(self) -> None:
        """Stop the timer of the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def set_deadline(self, deadline: float | None) -> None:
        """Let all waits end at ``deadline``, in the loop's time; None: no limit."""
        self.stop()
        self._late = False
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._late = True
        self._flight.wake()

    def _wait_for_news(self) -> asyncio.Future[None]:
        """Return a future that ends when the flight has news. Raises UpstreamTimeout when late."""
        if self._late:
            raise UpstreamTimeout(_LATE)
        self.waiter = waiter = self._loop.create_future()
        return waiter

    async def reply(self) -> Reply:
        """Wait for the reply, for its status and headers. Only the pump reads its pieces."""
        flight = self._flight
        while self._abort_reason is None:
            if flight.reply is not None:
                return flight.reply
            if flight.error is not None:
                raise flight.error
            await self._wait_for_news()
        raise self._abort_reason

    async def read(self) -> bytes:
        """Return everything that arrived since the last read, or ``b""`` at the clean end."""
        flight = self._flight
        while self._abort_reason is None:
            if self.position < flight.end:
                return flight.take(self)
            if flight.error is not None:
                raise flight.error
            if flight.ended:
                return b""
            await self._wait_for_news()
        raise self._abort_reason

    async def read_all(self) -> bytes | None:
        """Wait for the end and return the whole body, or None if it outgrows the log's bound."""
        flight = self._flight
        while self._abort_reason is None:
            if flight.error is not None:
                raise flight.error
            if flight.ended:
                return flight.take(self)
            if flight.full:
                return None
            await self._wait_for_news()
        raise self._abort_reason

    async def leave(self, request: FlightFigures) -> None:
        """Leave the flight, and give the request the figures that belong to it.

        The last client that leaves cancels the call while its answer is not whole.
        """
        flight, whole = self._flight, self.has_all
        if whole:
            request.delivered = True
            if request.total_s is None:
                request.total_s = time.perf_counter() - request.started
        last = flight.leave(self)

        if (last or flight.done or whole) and not flight.settled:
            # Calls are still being booked, and others may wait for the end of a body.
            limit_s = SETTLE_S + AFTER_END_S * whole
            with anyio.move_on_after(limit_s, shield=True):
                await flight.wait_settled()

        if flight.first_content is not None:
            upstream_s = max(0.0, flight.first_content - request.started)
            if request.total_s is None or upstream_s <= request.total_s:
                request.upstream_s = upstream_s
        if flight.origin is not None:
            request.origin, request.upstream = flight.origin, flight.origin.upstream
        request.stored = request.stored or flight.stored
        request.not_stored = flight.not_stored
        request.attempts = flight.attempts_to_book(self)
        if request.attempts:
            request.upstream = request.upstream or request.attempts[-1].upstream


class Flights(dict["Hashable", Flight]):
    """The flights that may be joined, by what equal calls have in common (their join key)."""

    def find(self, join_key: Hashable, deadline: float | None = None) -> Flight | None:
        """Return a flight that a client which waits until ``deadline`` may join, or None."""
        flight = self.get(join_key)
        if flight is None or not (flight.joinable and flight.lasts(deadline)):
            return None
        return flight

    def remove(self, join_key: Hashable, flight: Flight) -> None:
        """Forget a flight, unless another has taken its place."""
        if self.get(join_key) is flight:
            del self[join_key]


# --- calls that other processes may follow --------------------------------------------------------


class AnswerForm(NamedTuple):
    """The form in which an answer is wanted."""

    stream: bool
    include_usage: bool
    """A stream reports its tokens at its end."""


_BOTH = (False, True)
ANSWER_FORMS = {(stream, usage): AnswerForm(stream, usage) for stream in _BOTH for usage in _BOTH}
"""All forms, by their fields: to make one takes ten times as long."""


class LazyCondition:
    """Wakes those that wait for a change."""

    _event: asyncio.Event | None = None
    """It is there while somebody waits."""

    def notify(self) -> None:
        """Wake all that wait."""
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        self._event = self._event or asyncio.Event()
        await self._event.wait()


class OwnedCall(LazyCondition):
    """A call whose lease this process has. ``claims`` lookups may still begin it."""

    def __init__(self, lease: Lease, ended: Callable[[OwnedCall], None]) -> None:
        self.lease = lease
        self.claims = 0
        self.flight: Flight | None = None
        self.form: AnswerForm | None = None
        self.begun = False
        """The call has begun, or will not begin."""
        self.over = False
        """The answer is in the store, or will not be."""
        self.stored = False
        """The store has written the answer."""
        self._ended = ended

    def begin(self, flight: Flight, form: AnswerForm) -> None:
        """Let other processes follow a flight, unless they follow another one already."""
        if self.flight is None and not self.over:
            self.flight, self.form = flight, form
            flight.owned = self
            self.begun = True
            self.notify()

    async def wait_begun(self) -> None:
        """Wait until the call has begun, or will not begin."""
        while not self.begun:
            await self.wait()

    async def wait_over(self) -> None:
        """Wait until the answer is in the store, or will not be."""
        while not self.over:
            await self.wait()

    def end(self) -> None:
        """Release the lease. Processes that follow already get the rest of the answer."""
        self.begun = self.over = True
        self.notify()
        self.flight = None  # breaks a cycle that would keep the whole answer in memory
        self._ended(self)
