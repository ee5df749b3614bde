"""Joins equal calls of several processes: one process asks the provider, the others follow it.

1. **Claim.** A lookup makes a ``LeaseClaim``, and ``SharedFlights.find`` looks for the entry in the
   store. If there is none, it takes the lease of the call for this process, or learns which process
   has it (``interfaces.CallExchange``).
2. **Share the search.** Of equal lookups at the same time, only the first one searches, and the
   others wait for its outcome (``_search``, ``_share``).
3. **Own.** The process with the lease is the owner. It makes its call like any other, and
   ``LeaseClaim.begin`` allows other processes to follow the flight. It sends nothing unasked.
4. **Follow.** Any other process asks the owner for the answer (``follow``). The owner reads its own
   flight like a further client, and sends what it reads (``_serve_follower``): head, parts, end. So
   a client that leaves, in any process, does not stop the others. Every ``HEARTBEAT_S`` the owner
   reports that its process still runs.
5. **End.** When the call is over, the owner releases the lease (``_release``). If it dies or its
   call fails, one of the followers takes over the lease (``take_over``), and the others follow this
   process.

For example, these are the messages when process B follows a call of process A::

    B -> A   _FollowRequest   number 7, the lease, the form of the answer
    A -> B   HeadCame         status and headers
    A -> B   BodyPart         bytes from 0 on
    A -> B   _Heartbeat       nothing came for HEARTBEAT_S
    A -> B   BodyPart         the next bytes
    A -> B   AnswerEnded      whole

If all clients of B leave before the end, B sends an ``_UnfollowRequest``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headstart.attempts import Attempt  # noqa: TC001 - msgspec reads it
from headstart.errors import StageError, StoreError, UpstreamError
from headstart.middleware.flights import LOG_BYTES, OWN_ALONE, AnswerForm, LazyCondition, OwnedCall
from headstart.observe import Observer, StageFailed
from headstart.policies.routing.schedule import JoinTerms, twin_wait_s
from headstart.types import UNDECODABLE, Entry, Headers, Lease, Origin, T

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator

    from headstart.interfaces import CallExchange
    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.flights import Flight, FlightReader
    from headstart.reply import Reply


RENEW_S = 1.0
"""Seconds between two renewals of an owner's leases."""
HEARTBEAT_S = 0.5
"""The longest silence of an owner whose process runs."""
DOUBT_S = 1.0
"""Seconds of silence after which a follower checks whether the owner's process still runs."""
SILENCE_S = 3.0
"""Seconds of silence after which a follower gives the owner up, even if its process runs."""
BEGIN_S = 2.0
"""The longest time from taking the lease to the call, in which the owner searches by meaning."""
SETTLE_S = 1.0
"""The longest wait until an ended call is booked, before its followers get the end."""
MESSAGES_VERSION = 3
"""The version of the messages. Processes of different versions do not share leases."""
PART_BYTES = 256 * 1024
"""The most bytes of an answer in one message."""


class OwnerLost(UpstreamError):
    """The process that makes the call has ended, or cannot send the answer.

    ``again``: another process may take over the lease and make the call.
    """

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


# --- messages between processes -------------------------------------------------------------------


class _FlightMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message about one answer that a process follows."""

    number: int
    """The number under which the follower's process knows the answer."""


class _FollowRequest(_FlightMessage, frozen=True):
    """A process wants to follow the call of a lease."""

    address: str
    """The address of the follower's process."""
    lease: Lease
    form: AnswerForm
    wait_s: float | None
    """Seconds for which its client would wait for the whole answer."""
    terms: JoinTerms | None
    """How long it waits for the end, if the answer has another form than it needs."""


class _UnfollowRequest(_FlightMessage, frozen=True):
    """A process does not follow any more."""

    address: str


class HeadCame(_FlightMessage, frozen=True):
    """Status and headers of the answer have come."""

    status: int
    headers: Headers
    upstream: str
    transforms: tuple[str, ...]


class BodyPart(_FlightMessage, frozen=True):
    """A part of the body has come."""

    start: int
    """The number of bytes before it."""
    data: bytes
    origin: Origin | None = None
    """Set once the answer is whole."""


class AnswerEnded(_FlightMessage, frozen=True):
    """The last message about the answer."""

    whole: bool
    again: bool = True
    """Whether another process may take over the lease, if the answer is not whole."""
    origin: Origin | None = None
    attempts: tuple[Attempt, ...] = ()
    """The attempts that no client of the owner has booked."""


class _Heartbeat(_FlightMessage, frozen=True):
    """The owner's process still runs."""


Answer: TypeAlias = HeadCame | BodyPart | AnswerEnded
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    _FollowRequest | _UnfollowRequest | HeadCame | BodyPart | AnswerEnded | _Heartbeat
)


# --- leases ---------------------------------------------------------------------------------------


class LeaseClaim:
    """The claim of a lookup to the lease of its call, which this or another process may get.

    Call ``begin`` with the flight, or else ``close``, which releases the lease.
    """

    __slots__ = ("elsewhere", "exact", "form", "name", "owned")

    def __init__(self, join_key: Hashable, form: AnswerForm) -> None:
        """Make a claim. Equal calls have the same ``join_key`` in all processes."""
        hashed = blake2b(repr((MESSAGES_VERSION, join_key)).encode(), digest_size=20)
        self.name = hashed.hexdigest()
        self.form = form
        self.exact = ""
        """The exact key of the entry, known once the lookup has searched."""
        self.owned: OwnedCall | None = None
        """The call, if this process has the lease."""
        self.elsewhere: Lease | None = None
        """The lease, if another process has it."""

    def begin(self, flight: Flight) -> None:
        """Let other processes follow a flight, if this process has the lease."""
        owned, self.owned = self.owned, None
        if owned is not None:
            owned.claims -= 1
            owned.begin(flight, self.form)

    def close(self) -> None:
        """Release the lease if no flight began with it."""
        owned, self.owned = self.owned, None
        if owned is not None:
            owned.claims -= 1
            if not owned.claims and owned.flight is None:
                owned.end()


Found: TypeAlias = "Entry | OwnedCall | Lease | None"
"""What a search finds: an entry, the lease (of this process, of another one), or nothing."""


class _Unusable:
    """The outcome of a search that others must not use: it was cancelled, or found an entry."""


Outcome: TypeAlias = "OwnedCall | Lease | StageError | _Unusable | None"


class _LeaseSearches(LazyCondition):
    """The searches for one lease that run in this process. Tasks may wait for one to end.

    One of them leads. Lookups that come while it runs do not search, but wait for its outcome.
    """

    running = 0
    has_leader = False
    outcome: asyncio.Future[Outcome] | None = None
    """The outcome of the leading search; None: nobody waits for it."""

    def begin(self) -> bool:
        """Note that a search begins; return whether it leads."""
        self.running += 1
        leads, self.has_leader = not self.has_leader, True
        return leads

    def end(self, found: Outcome, *, leads: bool) -> None:
        """Note that a search has ended, and give its outcome to those that wait."""
        self.running -= 1
        if leads:
            outcome, self.outcome, self.has_leader = self.outcome, None, False
            if outcome is not None:
                outcome.set_result(found)

    def wait_for_leader(self) -> asyncio.Future[Outcome]:
        """Return the outcome of the leading search, before it is known."""
        self.outcome = self.outcome or asyncio.get_running_loop().create_future()
        return self.outcome


# --- following ------------------------------------------------------------------------------------


class RemoteAnswer:
    """The answer to a call of another process, from its messages. Close it with ``close``."""

    def __init__(self, flights: SharedFlights, owner: str, number: int) -> None:
        self.origin: Origin | None = None
        """The cost of the call, known once its answer is whole."""
        self._flights = flights
        self._owner = owner
        self._number = number
        self._messages: deque[Answer] = deque()
        """The messages that were not read yet."""
        self._size = 0
        """Bytes of the body in these messages."""
        self._received = 0
        """Bytes of the body that were read."""
        self._heard_at = asyncio.get_running_loop().time()
        self._waiter: asyncio.Future[None] | None = None
        self._lost = self._over = False

    def take(self, message: Answer | _Heartbeat) -> None:
        """Take a message of the owner."""
        self._heard_at = asyncio.get_running_loop().time()
        if not isinstance(message, _Heartbeat):
            self._messages.append(message)
            self._size += len(message.data) if isinstance(message, BodyPart) else 0
        self._wake()

    def lose(self) -> None:
        """Note that messages may be missing from now on."""
        self._lost = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Answer:
        """Return the next message. Raises OwnerLost if none comes, or if one is missing."""
        if self._size > LOG_BYTES:
            raise OwnerLost("too much of the answer waits to be read", again=False)
        while not self._messages:
            if self._lost:
                raise OwnerLost("the messages of other processes do not arrive", again=False)
            await self._wait_for_message()
        message = self._messages.popleft()
        if isinstance(message, BodyPart):
            if message.start != self._received:
                raise OwnerLost("a part of the answer was lost on its way", again=False)
            self._received += len(message.data)
            self._size -= len(message.data)
        if isinstance(message, BodyPart | AnswerEnded):
            self.origin = message.origin or self.origin
        self._over = isinstance(message, AnswerEnded)
        return message

    async def _wait_for_message(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DOUBT_S):
                return await self._waiter
        reached = await self._flights.reaches(self._owner)
        if self._messages:  # messages had come, but this process was too busy to see them
            return
        if not reached or loop.time() - self._heard_at >= SILENCE_S:
            raise OwnerLost("the process that made the call has ended", again=True)

    def close(self) -> None:
        """Stop following."""
        self._flights.leave(self._owner, self._number, notify_owner=not self._over)


# --- both together --------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class SharedFlights:
    """The flights of this process that others may follow, and those that it follows."""

    exchange: CallExchange
    spawn: Spawn
    observer: Observer
    peek: Callable[[str], Entry | None] = lambda _: None
    """Returns the entry under an exact key, if memory has it."""
    _owned: dict[str, OwnedCall] = field(default_factory=dict)
    """The calls of this process, by the names of their leases."""
    _searches: dict[str, _LeaseSearches] = field(default_factory=dict)
    """The searches that run, by the names of the leases."""
    _following: dict[int, RemoteAnswer] = field(default_factory=dict)
    """The answers that this process follows, by number."""
    _followers: dict[tuple[str, int], asyncio.Task[None]] = field(default_factory=dict)
    """The tasks that serve other processes, by address and number."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # --- lifetime ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Receive messages and renew leases, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive())
            tasks.create_task(self._renew())

    async def aclose(self) -> None:
        """Send followers the end of whole answers, and release all leases."""
        for owned in tuple(self._owned.values()):
            if (rest := self._release(owned)) is not None:
                await self._finish_release(rest)
        if self._followers:
            tasks = tuple(self._followers.values())
            _, late = await asyncio.wait(tasks, timeout=SETTLE_S)
            for task in late:
                task.cancel()

    async def _receive(self) -> None:
        while True:
            try:
                async with contextlib.aclosing(self.exchange.messages()) as messages:
                    async for data in messages:
                        if data:  # ``reaches`` sends an empty message
                            self._dispatch(data)
            except StageError as error:
                self._failed(error)
            for following in self._following.values():
                following.lose()
            await asyncio.sleep(RENEW_S)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            if leases := [owned.lease for owned in self._owned.values()]:
                try:
                    await self.exchange.renew(leases)
                except StageError as error:
                    self._failed(error)

    def _failed(self, error: StageError) -> None:
        cause = error.__cause__ or error
        detail = "equal calls of other processes are not joined"
        failed = StageFailed(stage="joining", error=type(cause).__name__, detail=detail)
        self.observer.notify(failed)

    # --- leases -----------------------------------------------------------------------------

    async def find(self, claim: LeaseClaim, exact: str) -> Entry | None:
        """Return the store's entry, or else take the lease of a claim if it is free.

        Without an entry, ``claim`` tells who has the lease. Equal searches at the same time are
        made only once. Raises StoreError.
        """
        claim.exact, name = exact, claim.name
        owned, searches = self._owned.get(name), self._searches.get(name)
        found: Found
        if owned is not None and owned.flight is not None:
            found = owned  # the call is in flight here, so there is no entry yet
        elif searches is None or not searches.has_leader:
            found = await self._search(exact, name)
        else:
            found = await self._share(searches, exact, name)
        if isinstance(found, OwnedCall):
            found.claims += 1
            claim.owned = found
            return None
        if isinstance(found, Lease):
            claim.elsewhere = found
            return None
        return found

    async def _share(self, searches: _LeaseSearches, exact: str, name: str) -> Found:
        """Return the outcome of the leading search."""
        outcome = searches.wait_for_leader()
        await asyncio.wait((outcome,))
        found = outcome.result()
        if isinstance(found, StageError):
            raise StoreError(str(found)) from found
        if isinstance(found, _Unusable):
            # An entry of the other search is not used, because it may have been deleted meanwhile.
            return self.peek(exact) or await self._search(exact, name)
        return found

    async def _search(self, exact: str, name: str, instead_of: int = 0) -> Found:
        """Search in the exchange, also for a lease that replaces the one with token ``instead_of``.

        Lookups that come meanwhile may wait for the outcome.
        """
        searches = self._searches.get(name)
        if searches is None:
            searches = self._searches[name] = _LeaseSearches()
        leads = searches.begin()
        outcome: Outcome = _Unusable()
        try:
            found = await self.exchange.find(exact, name, instead_of)
            if isinstance(found, Entry):
                return found
            outcome = found
            if found is not None and found.owner == self.exchange.address:
                outcome = self._own(found)
        except StageError as error:
            outcome = error
            raise
        else:
            return outcome
        finally:
            searches.end(outcome, leads=leads)
            if not searches.running:
                del self._searches[name]
            searches.notify()

    def _own(self, lease: Lease) -> OwnedCall:
        """Return the call of a lease that this process has."""
        owned = self._owned.get(lease.name)
        if owned is None or owned.lease.token != lease.token:
            owned = self._owned[lease.name] = OwnedCall(lease, self._call_ended)
        return owned

    async def take_over(self, exact: str, lost: Lease) -> Found:
        """Return what replaces a lost lease: an entry, a lease of this process or of another one.

        None if there is nothing: then the call has to be made without a lease.
        """
        try:
            return await self._search(exact, lost.name, lost.token)
        except StageError as error:
            self._failed(error)
            return None

    def _call_ended(self, owned: OwnedCall) -> None:
        """Release the lease of a call in the background."""
        rest = self._release(owned)
        if rest is not None:
            self.spawn(self._finish_release, rest)

    def _release(self, owned: OwnedCall) -> Coroutine[Any, Any, None] | None:
        """Begin to release the lease of a call; return the rest of the work, if there is any.

        Only the first call for a lease has an effect.
        """
        if self._owned.get(owned.lease.name) is not owned:
            return None
        del self._owned[owned.lease.name]
        return self.exchange.release(owned.lease, stored=owned.stored)

    async def _finish_release(self, rest: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(StageError):  # a lease that is not released ends by its TTL
            await rest

    # --- messages ---------------------------------------------------------------------------

    def _dispatch(self, data: bytes) -> None:
        """Give a message of another process to the part that waits for it."""
        try:
            message = _decoder.decode(data)
        except UNDECODABLE:
            return  # a process of another version wrote the message
        if isinstance(message, _FollowRequest):
            follower = message.address, message.number
            task = self._followers[follower] = self.spawn(self._serve_follower, message)
            task.add_done_callback(lambda _: self._followers.pop(follower, None))
        elif isinstance(message, _UnfollowRequest):
            serving = self._followers.get((message.address, message.number))
            if serving is not None:
                serving.cancel()
        else:
            following = self._following.get(message.number)
            if following is not None:
                following.take(message)

    async def _send(self, address: str, message: _FlightMessage) -> bool:
        return await self.exchange.send(address, msgspec.msgpack.encode(message))

    async def reaches(self, address: str) -> bool:
        """Tell whether a process still runs."""
        try:
            return await self.exchange.send(address, b"")
        except StageError:
            return False

    # --- as a follower ----------------------------------------------------------------------

    async def follow(
        self, lease: Lease, form: AnswerForm, wait_s: float | None, terms: JoinTerms | None
    ) -> RemoteAnswer:
        """Follow the call of a lease. Raises OwnerLost."""
        number = next(self._numbers)
        following = self._following[number] = RemoteAnswer(self, lease.owner, number)
        message = _FollowRequest(number, self.exchange.address, lease, form, wait_s, terms)
        reached = again = False
        try:
            reached = await self._send(lease.owner, message)
            again = True
        except StageError as error:
            self._failed(error)
        finally:
            if not reached:
                del self._following[number]
        if not reached:
            raise OwnerLost("the process that made the call cannot be reached", again=again)
        return following

    def leave(self, owner: str, number: int, *, notify_owner: bool) -> None:
        """Stop following. ``notify_owner``: the owner gets a message about it."""
        if self._following.pop(number, None) is not None and notify_owner:
            self.spawn(self._try_to_send, owner, _UnfollowRequest(number, self.exchange.address))

    async def _try_to_send(self, address: str, message: _FlightMessage) -> None:
        """Send a message, and ignore an error."""
        with contextlib.suppress(StageError):
            await self._send(address, message)

    # --- as the owner -----------------------------------------------------------------------

    async def _serve_follower(self, follow: _FollowRequest) -> None:
        """Send a follower the whole answer from its beginning, or only how it ended."""
        with contextlib.suppress(_FollowerGone, StageError):
            end = AnswerEnded(follow.number, whole=False)
            owned = await self._owned_by(follow)
            flight = None if owned is None else await self._begun_flight(owned, follow)
            if owned is not None and flight is not None:
                end = await self._answer_follower(owned, flight, follow)
            await self._send_to(follow, end)

    async def _begun_flight(self, owned: OwnedCall, follow: _FollowRequest) -> Flight | None:
        """Wait until a call has begun; return its flight, unless it has failed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_S):
                await self._with_heartbeats(follow, owned.wait_begun)
        flight = owned.flight
        failed = flight is not None and (flight.error is not None or flight.abandoned)
        return None if failed else flight

    async def _answer_follower(
        self, owned: OwnedCall, flight: Flight, follow: _FollowRequest
    ) -> AnswerEnded:
        """Let a follower have the answer as it comes, or wait for its end, or make its own call."""
        now = asyncio.get_running_loop().time()
        deadline = None if follow.wait_s is None else now + follow.wait_s
        if flight.joinable and flight.lasts(deadline):
            if follow.form == owned.form:
                return await self._publish(flight, follow)
            if owned.form is not None and follow.form.stream != owned.form.stream:
                twin_s = twin_wait_s(follow.terms, time.perf_counter() - flight.began)
                if twin_s is not None:
                    return await self._wait_for_end(owned, flight, follow, twin_s)
        return AnswerEnded(follow.number, whole=False, again=False)

    async def _owned_by(self, follow: _FollowRequest) -> OwnedCall | None:
        """Return the call that a process wants to follow; None if it is over.

        The other process may know of the lease before the search that took it has ended in this
        process, so this waits for the search.
        """
        lease = follow.lease
        while True:
            owned = self._owned.get(lease.name)
            if owned is not None and owned.lease.token == lease.token:
                return owned
            searches = self._searches.get(lease.name)
            if searches is None:
                return None
            await self._with_heartbeats(follow, searches.wait)

    async def _wait_for_end(
        self, owned: OwnedCall, flight: Flight, follow: _FollowRequest, wait_s: float
    ) -> AnswerEnded:
        """Read a flight to its end, for a follower that then gets the whole answer from the store.

        After ``wait_s`` the follower is told to make its own call.
        """
        reader = flight.join()
        in_time = True
        try:
            async with asyncio.timeout(None if math.isinf(wait_s) else wait_s):
                while await self._with_heartbeats(follow, reader.read):
                    pass
        except TimeoutError:
            in_time = False
        except UpstreamError:
            pass  # the clients of the flight get the error
        finally:
            flight.leave(reader)
        if in_time:
            await self._with_heartbeats(follow, owned.wait_over)
        await wait_until_settled(flight)
        attempts = flight.attempts_to_book(reader)
        return AnswerEnded(follow.number, whole=False, again=in_time, attempts=attempts)

    async def _publish(self, flight: Flight, follow: _FollowRequest) -> AnswerEnded:
        """Read a flight for a follower; return how it ended."""
        reader = flight.join()
        whole = must_not_share = False
        try:
            reply = await self._with_heartbeats(follow, reader.reply)
            must_not_share = reply.not_stored in OWN_ALONE
            if not must_not_share:
                await self._send_head(reply, follow)
                await self._send_body(flight, reader, follow)
                whole = True
        except (_FollowerGone, StageError):
            raise
        except Exception:  # noqa: BLE001, S110 - whatever it is, the clients of this process get it
            pass
        finally:
            flight.leave(reader)
        await wait_until_settled(flight)
        attempts, again = flight.attempts_to_book(reader), not must_not_share
        return AnswerEnded(follow.number, whole, again, flight.origin, attempts)

    async def _send_head(self, reply: Reply, follow: _FollowRequest) -> None:
        headers = tuple(pair for pair in reply.headers if pair[0] != b"set-cookie")
        head = HeadCame(follow.number, reply.status, headers, reply.upstream, reply.transforms)
        await self._send_to(follow, head)

    async def _send_body(
        self, flight: Flight, reader: FlightReader, follow: _FollowRequest
    ) -> None:
        sent = 0
        while data := await self._with_heartbeats(follow, reader.read):
            for start in range(0, len(data), PART_BYTES):
                part = data[start : start + PART_BYTES]
                await self._send_to(follow, BodyPart(follow.number, sent, part, flight.origin))
                sent += len(part)

    async def _with_heartbeats(self, follow: _FollowRequest, wait: Callable[[], Awaitable[T]]) -> T:
        """Return what ``wait`` returns, and send the follower heartbeats meanwhile.

        After each heartbeat ``wait`` is called again, so it must lose nothing when it is cancelled.
        """
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S) as limit:
                    return await wait()
            except TimeoutError:
                if not limit.expired():
                    raise
            await self._send_to(follow, _Heartbeat(follow.number))

    async def _send_to(self, follow: _FollowRequest, message: _FlightMessage) -> None:
        """Send a message to a follower. Raises _FollowerGone or StoreError."""
        if not await self._send(follow.address, message):
            raise _FollowerGone


async def wait_until_settled(flight: Flight) -> None:
    """Wait until a call that its last reader has left can be booked."""
    if not flight.clients and not flight.settled:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await flight.wait_settled()


class _FollowerGone(Exception):
    """The follower's process has ended."""
