"""Answers a call with the answer that another process gets, or else sends the call itself."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headstart.attempts import AttemptRole, RoutingEstimate
from headstart.errors import UpstreamError
from headstart.middleware.flights import AnswerForm, Flight, OwnedCall
from headstart.middleware.reading import BodyReader, body_reader
from headstart.middleware.shared_flights import (
    Answer,
    AnswerEnded,
    BodyPart,
    HeadCame,
    LeaseClaim,
    OwnerLost,
    RemoteAnswer,
    SharedFlights,
    wait_until_settled,
)
from headstart.middleware.upstreams.outgoing import pieces_of
from headstart.policies.routing.schedule import ANY_WAIT, JoinTerms, join_terms, twin_wait_s
from headstart.reply import Reply, Transcript, read_whole, replayed
from headstart.types import Call, Entry, Headers, Lease, Piece

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from headstart.dialects.dialect import Dialect
    from headstart.interfaces import Candidate, Upstream
    from headstart.settings import JoinStreams

    Render: TypeAlias = Callable[[Entry], "tuple[Headers, bytes, int] | None"]

MOST_OWNERS = 3
"""The most processes that are followed, one after the other, before this process makes the call."""


class WaitingCall(NamedTuple):
    """A call that waits for the answer of another one."""

    inner: Upstream
    """It makes the call if the other one gives no answer."""
    dialect: Dialect | None
    render: Render
    """Gives headers, body and status of an entry, or None if it must not answer."""
    join_streams: JoinStreams

    def terms(self, call: Call) -> JoinTerms | None:
        """Return the terms on which a stream waits for a whole answer; None: it does not wait.

        A call for a whole answer always waits for the end of a stream.
        """
        if call.request is None or not call.request.stream:
            return ANY_WAIT
        if self.join_streams != "sooner":
            return join_terms(self.join_streams, None)
        estimate = getattr(self.inner, "estimate", None)  # an app has none
        return join_terms("sooner", None if estimate is None else estimate(call))

    def stored(self, entry: Entry) -> Reply | None:
        """Return an entry, which another call has stored meanwhile, as the answer."""
        answer = self.render(entry)
        if answer is None:
            return None
        headers, body, status = answer
        reader, transcript = body_reader(status, headers, self.dialect), Transcript()
        pieces = pieces_of(body, reader, transcript)
        reply = Reply(entry.origin.upstream, status, headers, pieces, transcript=transcript)
        reply.followed = entry
        return reply


@dataclass(eq=False, repr=False)
class FollowedCall:
    """The upstream of a call that another process makes.

    If that process fails before any content came, this process makes the call. If it fails later,
    the answer is rescued: ``rescued`` puts a rescue around a candidate.
    """

    flights: SharedFlights
    claim: LeaseClaim
    flight: Flight
    waiting: WaitingCall
    rescued: Callable[[Candidate], Upstream] | None

    @property
    def name(self) -> str:
        """The name of the upstream that would be asked."""
        return self.waiting.inner.name

    async def send(self, call: Call) -> Reply:
        """Follow the owner of the lease, and each process that takes it over.

        Raises UpstreamError.
        """
        lease = self.claim.elsewhere
        assert lease is not None
        for _ in range(MOST_OWNERS):
            try:
                return await self._follow(lease, call)
            except OwnerLost as lost:
                if not lost.again:
                    break
            found = await self.flights.take_over(self.claim.exact, lease)
            if isinstance(found, Entry):
                reply = self.waiting.stored(found)
                if reply is not None:
                    return reply
            elif isinstance(found, OwnedCall):
                found.begin(self.flight, self.claim.form)
            if not isinstance(found, Lease):
                break
            lease = found
        return await self.waiting.inner.send(call)

    async def _follow(self, lease: Lease, call: Call) -> Reply:
        """Return the answer of a lease's owner. Raises OwnerLost before the first content."""
        source = _OwnersAnswer(self.flights, lease, self.claim.form, self.waiting)
        upstream = source if self.rescued is None else self.rescued(source)
        return await upstream.send(call)


class AwaitedTwin:
    """The upstream of an answer that is in flight in the other form: whole, or as a stream.

    It waits for the end of that call. If the call fails or takes too long, or its answer is not
    stored, the call is made here.
    """

    def __init__(self, twin: Flight, waiting: WaitingCall) -> None:
        self.name = waiting.inner.name
        self._twin = twin
        self._waiting = waiting

    async def send(self, call: Call) -> Reply:
        """Wait for the twin, if that is sooner. Raises UpstreamError."""
        twin, waiting = self._twin, self._waiting
        wait_s = twin_wait_s(waiting.terms(call), time.perf_counter() - twin.began)
        if wait_s is None:
            return await waiting.inner.send(call)
        reader = twin.join(call.deadline)
        try:
            async with asyncio.timeout(None if math.isinf(wait_s) else wait_s):
                while await reader.read():
                    pass
        except (TimeoutError, UpstreamError):
            pass  # the twin's clients get the error
        finally:
            twin.leave(reader)
        await wait_until_settled(twin)
        for attempt in twin.attempts_to_book(reader):
            call.log.book(attempt)
        reply = None if twin.entry is None else waiting.stored(twin.entry)
        return await waiting.inner.send(call) if reply is None else reply


class _OwnersAnswer:
    """A candidate that answers with the owner's call. If it breaks off, our own call rescues it."""

    def __init__(
        self, flights: SharedFlights, lease: Lease, form: AnswerForm, waiting: WaitingCall
    ) -> None:
        inner = waiting.inner
        self.name = inner.name
        self.identity: str = getattr(inner, "identity", inner.name)
        self.names: frozenset[str] = getattr(inner, "names", frozenset((inner.name,)))
        self._flights = flights
        self._lease = lease
        self._form = form
        self._waiting = waiting

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return the estimate of the candidate that would be asked."""
        return self._waiting.inner.estimate(call)  # type: ignore[attr-defined, no-any-return]

    async def send(self, call: Call) -> Reply:
        """Wait for the first content of a stream, or for the whole of any other answer."""
        if call.role == AttemptRole.RESCUE:
            return await self._waiting.inner.send(call)
        now, until = asyncio.get_running_loop().time(), call.deadline
        wait_s = None if until is None else max(0.0, until - now)
        terms = self._waiting.terms(call)
        following = await self._flights.follow(self._lease, self._form, wait_s, terms)
        try:
            return await self._begun(following, call)
        except BaseException:
            following.close()
            raise

    async def _begun(self, following: RemoteAnswer, call: Call) -> Reply:
        opened = await following.next()
        if not isinstance(opened, HeadCame):
            _take_attempts(opened, call)
            raise _lost(opened)
        transcript = Transcript()
        reader = body_reader(opened.status, opened.headers, self._waiting.dialect)
        pieces = _pieces(following, reader, transcript, call)

        async def close(_: BaseException | None) -> None:
            following.close()

        reply = Reply(
            opened.upstream,
            opened.status,
            opened.headers,
            pieces,
            transforms=opened.transforms,
            closing=close,
            transcript=transcript,
        )
        reply.followed = following
        if not reply.is_stream:
            return await read_whole(reply)
        held = []
        async for piece in pieces:
            held.append(piece)
            if transcript.content_started or self._waiting.dialect is None:
                break
        reply.pieces = replayed(held, pieces)
        return reply


async def _pieces(
    following: RemoteAnswer, reader: BodyReader, transcript: Transcript, call: Call
) -> AsyncGenerator[Piece]:
    """Yield the answer of another process. Raises OwnerLost if it breaks off."""
    while True:
        message = await following.next()
        if isinstance(message, BodyPart):
            piece = reader.feed(message.data)
            transcript.add(piece)
            yield piece
            continue
        _take_attempts(message, call)
        if not (isinstance(message, AnswerEnded) and message.whole):
            raise _lost(message)
        piece = reader.end()
        transcript.add(piece)
        yield piece
        return


def _take_attempts(message: Answer, call: Call) -> None:
    """Book the attempts that no client of the owner has booked, from the answer's last message."""
    for attempt in message.attempts if isinstance(message, AnswerEnded) else ():
        call.log.book(attempt)


def _lost(message: Answer) -> OwnerLost:
    """Return the error of an answer that broke off with this message."""
    again = isinstance(message, AnswerEnded) and message.again
    return OwnerLost("the process that made the call could not finish it", again=again)
