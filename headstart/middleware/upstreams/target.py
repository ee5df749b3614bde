"""A target: one provider under one key. It calls the provider, and keeps its health and its limits.

1. ``Target.send`` reserves the highest cost of the call in the limits of the caller's key. Then it
   asks the circuit breaker and the rate limits whether the call may be made now (``_begin``).
2. ``TargetCall.open`` sends the call, and reads up to the first content (``open_answer``). Until
   then another upstream can be asked instead, because nobody has seen anything of the answer.
3. ``TargetCall`` is then the iterator over the pieces. It limits the wait for each piece.
4. However the call ends, it is booked once (``AttemptBooking`` in ``accounting.py``).

For example, a provider streams a role, the text "Hi", a ping and the end. ``send`` returns a
``Reply`` when "Hi" has come. Its pieces are the role and "Hi", which were held, then the ping and
the end. If the provider answers 503, ``send`` raises an error. If it falls silent after "Hi", the
reader of the pieces gets the error.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import msgspec

from headstart.dialects.registry import DIALECTS, DOCUMENTS, FORMS
from headstart.errors import (
    HeadstartError,
    RequestError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headstart.middleware.identity import credential_of
from headstart.middleware.reading import error_event, error_in
from headstart.middleware.upstreams.accounting import (
    MOST_GAPS,
    AttemptBooking,
    classify_failure,
    expected_tokens,
    most_tokens,
    reserved_tokens,
)
from headstart.middleware.upstreams.outgoing import AFTER_END_S, REFUSAL_BYTES
from headstart.policies.callers import PROMPT_MARGIN, NameMemo
from headstart.policies.routing.failures import (
    FailureKind,
    error_in_answer,
    fails_relayed,
    failure_of,
    headers_for_own_body,
    limit_relayed_pause,
    safe_code,
)
from headstart.policies.routing.measures import UpstreamModel
from headstart.policies.routing.ordering import Availability, CallShape, predict_call
from headstart.policies.routing.rate_limits import NOTHING_TAKEN
from headstart.reply import HELD_BYTES, AnswerWithheld, Reply, Transcript, read_up_to, replayed
from headstart.settings import UpstreamSettings, masked_url
from headstart.types import Call, ErrorReported, Headers, Piece, T

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from headstart.attempts import RoutingEstimate
    from headstart.dialects.dialect import Dialect
    from headstart.interfaces import Upstream
    from headstart.middleware.client_ledger import ClientLedger, Reservation
    from headstart.middleware.telemetry import Tracing
    from headstart.middleware.upstreams.accounting import UpstreamState, UpstreamStates
    from headstart.middleware.upstreams.node_limits import Counted, NodeLimits
    from headstart.policies.cost import Price
    from headstart.policies.routing.failures import CircuitBreaker, Permit
    from headstart.reply import Closing


_SHOWN_CHARACTERS = 200
"""The most characters of a redirect's address that an error shows."""
SHORTEST_WAIT_S = 0.01
"""The shortest wait of a call that queues for a rate limit."""
KEPT_ALIVE = 4
"""While only pings and comments come, the wait for content is this many stall limits. The
connection is alive, and the model may think between two blocks, or hang. For example, with a limit
of 30 s a provider may send nothing for 30 s, and only pings for 120 s."""
MOST_MODELS = 256
LONGEST_NAME = 128
"""The most characters of a model's name that is remembered."""


class _Model(msgspec.Struct, frozen=True):
    """A model of the upstream, by its real name."""

    key: UpstreamModel
    price: Price | None


@dataclass(eq=False, repr=False)
class Target:
    """Makes calls to ``upstream``. ``send`` waits for the first content of the answer.

    While the circuit breaker is open or a rate limit is used up, ``send`` raises
    UpstreamUnavailable without a call. A request that the provider's dialect cannot express
    (InvalidRequest) is not sent and not booked. ``clock`` returns Unix seconds.
    """

    upstream: Upstream
    settings: UpstreamSettings
    """``models`` has all names of models that it understands. A time limit of None is learned."""
    states: UpstreamStates
    clock: Callable[[], float]
    _: KW_ONLY
    key: str = ""
    """A name of the upstream's own key, as each key has its own state; "": callers send theirs."""
    # The longest prompt and the price of a model, by the upstream's own name of the model.
    context_tokens: Callable[[str], int | None] = lambda _: None
    price: Callable[[str], Price | None] = lambda _: None
    tracing: Tracing | None = None
    """Makes a span of each call."""
    ledger: ClientLedger | None = None
    """Reserves the highest cost of a call in the limits of the caller's key."""
    is_free: bool = False  # the upstream sends no bill
    nodes: NodeLimits | None = None
    """The rate limits that all nodes share."""
    address: str = ""
    """The name of the provider and its key in ``nodes``."""
    _timeouts: list[ReusableTimeout] = field(default_factory=list)
    """Timeouts of calls that have ended. Their timers may still run."""

    def __post_init__(self) -> None:
        self.name = self.identity = self.settings.name
        self.names = frozenset((self.name,))
        self.own_key = bool(self.key)
        """The upstream gets its own key, and not those of the callers."""
        self._known = lru_cache(MOST_MODELS)(self._named)
        """Returns the model of a name that callers use, and remembers it."""
        self._hashes = NameMemo(lambda sent: blake2b(sent, digest_size=16).hexdigest())
        """The hash of each key of callers."""

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return the present estimate of this call."""
        now = asyncio.get_running_loop().time()
        model = self._model(call)
        key, price = model.key, model.price
        state, measures = self._state(call, key), self.states.measures
        breaker, limits = state.breaker, state.limits
        ask = CallShape(
            prompt_tokens=call.prompt_tokens,
            output_tokens=expected_tokens(call, measures),
            max_tokens=most_tokens(call),
            warm=self.states.affinities.of(call.affinity, now) == self.name,
        )
        ready_in_s = max(
            breaker.avoided_for_s(now),
            limits.ready_in_s(reserved_tokens(call, measures), now, 1 + state.queued),
        )
        if call.relayed:
            # Calls for other models may have shown already that the upstream is down.
            down_s = self.states.open_for_s(self.name, self._key_of(call), now)
            ready_in_s = max(ready_in_s, down_s)
        availability = Availability(
            ready_in_s=ready_in_s,
            degraded=breaker.degraded(now),
            weight=breaker.weight(now),
            context_tokens=self.context_tokens(key.model),
            bills_cancelled=self.settings.cancels_billing is not True,
            allowance=limits.allowance(now),
        )
        return predict_call(self.name, key, ask, availability, measures, now, price=price)

    async def send(self, call: Call) -> Reply:
        """Send the call and wait for its first content. Raises HeadstartError."""
        reservation = None if self.ledger is None else await self._reserve(call, self.ledger)
        try:
            if call.queues_until is not None:
                booking = await self._begin_in_queue(call, call.queues_until, reservation)
            elif self.nodes is None:
                booking = self._begin(call, reservation)
            else:
                booking = await self._take_and_begin(call, self.nodes, reservation)
        except UpstreamUnavailable:
            if reservation is not None:
                reservation.release()
            raise
        if self.tracing is not None:
            call = self.tracing.attempt(call, self.settings, booking.key.model)
            booking.call = call
        dialect = None if call.request is None else DIALECTS.get(call.dialect)
        stall_s = self._stall_limit_s(booking, call)
        opened = TargetCall(call, booking, dialect, self._timeouts, stall_s, self.clock)
        return await opened.open(self.upstream, self._first_content_until(booking, call))

    async def _reserve(self, call: Call, ledger: ClientLedger) -> Reservation | None:
        """Reserve the highest cost of the call. Raises RequestError."""
        model, request = self._model(call), call.request
        prompt_tokens = PROMPT_MARGIN * call.prompt_tokens
        context_tokens = self.context_tokens(model.key.model)
        if context_tokens is not None:
            prompt_tokens = min(prompt_tokens, context_tokens)
        answers, answer_tokens = 1, None
        if call.output_tokens == 0:
            answer_tokens = 0
        elif request is not None:
            answer_tokens, answers = FORMS[request.dialect].answers_billed(request)
        return await ledger.reserve(
            call,
            model.key.model,
            model.price,
            is_free=self.is_free,
            prompt=prompt_tokens,
            completion=None if answer_tokens is None else max(0, answer_tokens),
            answers=max(1, answers),
        )

    async def _begin_in_queue(
        self, call: Call, until: float, reservation: Reservation | None
    ) -> AttemptBooking:
        """Wait in the queue for the rate limit, and begin the call.

        Raises UpstreamUnavailable if its turn does not come by ``until``, or the upstream fails.
        """
        state, loop = self._state(call, self._model(call).key), asyncio.get_running_loop()
        state.queued += 1
        try:
            async with asyncio.timeout_at(until), state.queue:
                while True:
                    try:
                        if self.nodes is None:
                            return self._begin(call, reservation)
                        return await self._take_and_begin(call, self.nodes, reservation)
                    except UpstreamUnavailable as error:
                        wait_s = error.retry_after_s or 0.0
                        if not error.limited or loop.time() + wait_s > until:
                            raise
                    await asyncio.sleep(max(wait_s, SHORTEST_WAIT_S))
        except TimeoutError:
            # Its time is over. If it still cannot begin, the error tells how long to wait.
            call = msgspec.structs.replace(call, queues_until=None)
            return self._begin(call, reservation)
        finally:
            state.queued -= 1

    async def _take_and_begin(
        self, call: Call, nodes: NodeLimits, reservation: Reservation | None
    ) -> AttemptBooking:
        """Count the call in the limits of all nodes, and begin it. Raises UpstreamUnavailable."""
        key = self._model(call).key
        state = self._state(call, key)
        limits = nodes.share(state, self.address, key.model, self._key_of(call))
        tokens = reserved_tokens(call, self.states.measures)
        waiting = None if call.queues_until is not None else state.queued
        count = await limits.try_take(tokens, waiting)
        try:
            return self._begin(call, reservation, count)
        except UpstreamUnavailable:
            if count is not None and count.taken:
                limits.cancel(tokens, asyncio.get_running_loop().time())
            raise

    def _begin(
        self, call: Call, reservation: Reservation | None, count: Counted | None = None
    ) -> AttemptBooking:
        """Begin the call, if the breaker and the limits permit it; return its booking.

        ``count`` is the call's count in the limits of all nodes; None: this node counts it in its
        own. Raises UpstreamUnavailable.
        """
        model, now = self._model(call), asyncio.get_running_loop().time()
        state = self._state(call, model.key)
        with state.lock:
            counts_here = count is None and state.limits.known
            reserved, limit_s, taken = 0, 0.0, NOTHING_TAKEN
            if counts_here or count is not None:
                reserved = reserved_tokens(call, self.states.measures)
            if count is not None:
                limit_s, taken = count
            elif counts_here:
                # The first call of the queue has no call before it.
                before = 0 if call.queues_until is not None else state.queued
                limit_s = state.limits.ready_in_s(reserved, now, 1 + before)
            permit = state.breaker.admit(now) if limit_s <= 0.0 else None
            if permit is None:
                permit = self._insist(call, state.breaker, limit_s, now)
            if counts_here:
                taken = state.limits.take(reserved, now)
        return AttemptBooking(
            call,
            model.key,
            permit=permit,
            state=state,
            states=self.states,
            price=None if call.relayed else model.price,
            cancels_billing=self.settings.cancels_billing is True,
            began=now,
            at=self.clock(),
            reserved_tokens=reserved,
            taken=taken,
            reservation=reservation,
        )

    def _insist(self, call: Call, breaker: CircuitBreaker, limit_s: float, now: float) -> Permit:
        """Return a permit for a call that ignores the circuit breaker.

        Raises UpstreamUnavailable for other calls, and if the call has to wait for a rate limit.
        """
        breaker_s = breaker.ready_in_s(now)
        is_limited = limit_s > breaker_s or breaker.limited(now)
        if call.ignore_breaker and not is_limited:
            return breaker.insist(now)
        why = "has used up its rate limit" if is_limited else "is not asked while it fails"
        raise UpstreamUnavailable(
            f"upstream {self.name} {why}",
            retry_after_s=max(limit_s, breaker_s),
            limited=is_limited,
        )

    def _first_content_until(self, booking: AttemptBooking, call: Call) -> float | None:
        """Return the latest time for the first content, or None.

        An answer that is not streamed comes only when all of it is written.
        """
        if not booking.streams:
            return call.deadline
        limit_s = self.settings.first_token_s
        if limit_s is None and call.has_alternative:
            limit_s = self.states.measures.first_token_limit_s(
                booking.key, call.prompt_tokens, booking.began
            )
        if limit_s is None:
            return call.deadline  # no other upstream is left, and a model may think for minutes
        until = booking.began + limit_s
        return until if call.deadline is None else min(until, call.deadline)

    def _stall_limit_s(self, booking: AttemptBooking, call: Call) -> float:
        """Return how many seconds the answer may be silent after its first content."""
        if call.relayed:
            # Nobody knows how long such an answer may be silent; ``read_s`` limits it.
            return math.inf
        if self.settings.stall_s:
            return self.settings.stall_s
        limit_s, with_tools_s = booking.stall_limits_s
        request = call.request
        if request is None or limit_s == with_tools_s:
            return limit_s
        has_tools = FORMS[request.dialect].has_tools(request.document)
        return with_tools_s if has_tools else limit_s

    def _model(self, call: Call) -> _Model:
        """Return the model that a call asks for.

        For a relayed call without a model, the kind of its path is taken as the model: one kind may
        fail while others work.
        """
        asked = call.model or (call.endpoint if call.relayed else "")
        name = asked if call.request is None else call.request.model
        # Callers may name any model.
        return (self._known if len(name) <= LONGEST_NAME else self._named)(name)

    def _named(self, name: str) -> _Model:
        real = self.settings.models.get(name, name)
        return _Model(UpstreamModel(self.name, real), self.price(real))

    def _state(self, call: Call, key: UpstreamModel) -> UpstreamState:
        """Return the state of the model under the key of the call."""
        return self.states.of(key.upstream, key.model, self._key_of(call))

    def _key_of(self, call: Call) -> str:
        if self.key:
            return self.key
        return self._hashes[
            credential_of(call.headers, call.query_string, include_cookies=False) or b""
        ]


# --- one call -------------------------------------------------------------------------------------

_NO_ANSWER = Transcript()
"""The transcript of an answer that has not begun."""


@dataclass(slots=True, eq=False, repr=False)
class TargetCall:
    """One call of a target, and the iterator over the pieces of its answer.

    Reading raises UpstreamTimeout if no piece comes for ``stall_s``, if no piece with content comes
    for ``KEPT_ALIVE`` times as long, or after the call's deadline. It raises UpstreamProtocolError
    or UpstreamRefused if the answer breaks off. It takes one of the unused ``timeouts``, or a new
    one, and puts it back when the call ends.
    """

    call: Call
    booking: AttemptBooking
    dialect: Dialect | None
    timeouts: list[ReusableTimeout] | None
    stall_s: float
    clock: Callable[[], float]
    _timeout: ReusableTimeout = field(init=False)
    _time: Callable[[], float] = field(init=False)
    _deadline: float = field(init=False)
    _next_piece_s: float = field(init=False)
    """The longest wait for the next piece. It gets shorter while pieces without content come."""
    _without_content_s: float = 0.0
    """Seconds of waiting since the last piece with content."""
    _streams: bool = field(init=False)
    """The client wants a stream, and so the answer is over at its terminal event."""
    _held: deque[Piece] = field(default_factory=deque)
    """The pieces up to the first content, until they are passed on."""
    _source: AsyncGenerator[Piece] = field(init=False)
    _over: bool = False
    """No further piece comes from the source."""
    _closing: Closing | None = None
    _name: str = ""
    _headers: Headers = ()
    _transcript: Transcript = _NO_ANSWER

    def __post_init__(self) -> None:
        call = self.call
        self._timeout = self.timeouts.pop() if self.timeouts else ReusableTimeout()
        self._time = self._timeout.time
        self._deadline = math.inf if call.deadline is None else call.deadline
        self._next_piece_s = self.stall_s
        self._streams = call.request is not None and call.request.stream

    async def open(self, upstream: Upstream, until: float | None) -> Reply:
        """Send the call, and read up to the first content, which has to come by ``until``.

        A call that fails is closed and booked. Raises HeadstartError.
        """
        try:
            opening = self._first_content(upstream)
            reply = await (opening if until is None else self._timeout.within(opening, until))
        except TimeoutError as error:
            late = self._too_late("sent no content within upstream.first_token_s")
            await self._fail(late)
            raise late from error
        except HeadstartError as error:
            await self._fail(error)
            raise
        except BaseException as error:
            await self._close(error)
            raise
        self.booking.first(self._time())
        reply.usual_speed = self.booking.usual_speed
        reply.pieces, reply.closing = self, self._close
        return reply

    async def _first_content(self, upstream: Upstream) -> Reply:
        """Send the call and read up to the first content; keep the pieces until then."""
        call = self.call
        reply = await upstream.send(call)
        self._closing = reply.closing
        self._name, self._headers = reply.upstream, reply.headers
        self._transcript = reply.transcript
        self._source = cast("AsyncGenerator[Piece]", reply.pieces)
        if reply.status == 200 and not (reply.is_plain and (call.editable or reply.is_stream)):
            # An answer to a call that passes unchanged may have any form; only the caller reads it.
            self.dialect = None
        reads_usage = self.dialect or DOCUMENTS.get(call.dialect)
        self.booking.answered(reply, reads_usage, self._time(), self.clock())
        if call.relayed:
            self._held.extend(await open_relayed(reply, self.clock()))
        else:
            self._held.extend(await open_answer(reply, self.dialect, call.id))
        return reply

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece.

        The call is booked as won when the terminal event came, or else at a clean end. A stream is
        over at its terminal event, so it is booked before its last piece is passed on.
        """
        transcript, booking = self._transcript, self.booking
        if self._held:
            return self._next_held()
        if self._over:
            raise StopAsyncIteration
        wait_began = self._time()
        is_whole = transcript.ended or (transcript.finish is not None and transcript.finished)
        # After a whole answer, ``HTTPUpstream`` ends the body within AFTER_END_S. This limit is
        # longer, so that it applies only if the upstream has no such limit.
        until = wait_began + (2 * AFTER_END_S if is_whole else self._next_piece_s)
        until = min(until, self._deadline)
        try:
            piece = await self._timeout.within(anext(self._source, None), until)
            if transcript.error is not None or (piece is None and not transcript.ended):
                self._raise_if_broken(piece)
        except TimeoutError as error:
            if not is_whole:
                silent = self._too_late("fell silent in its answer, beyond upstream.stall_s")
                # It is closed now, not when the caller leaves: a rescue may run long after this.
                await self._fail(silent)
                raise silent from error
            piece = None
        except HeadstartError as error:
            await self._fail(error)
            raise
        arrived = self._time()
        if piece is None:
            self._over = True
            booking.ended(arrived)
            raise StopAsyncIteration

        # Limit the next wait. Pings and comments have no events.
        if piece.events:
            self._without_content_s, self._next_piece_s = 0.0, self.stall_s
        elif self.dialect is not None:
            self._without_content_s += arrived - wait_began
            left_s = KEPT_ALIVE * self.stall_s - self._without_content_s
            self._next_piece_s = min(left_s, self.stall_s)

        # Measure the gap between the pieces, from which the stall limit is learned.
        gaps = booking.gaps
        gaps.append(arrived - booking.last)
        booking.last = arrived
        if len(gaps) == MOST_GAPS:
            booking.learn_gaps()
        if transcript.ended and self._streams:
            self._over = True
            booking.ended(arrived)
        return piece

    def _too_late(self, problem: str) -> UpstreamTimeout:
        kind = FailureKind.SILENT if self.booking.first_at is None else FailureKind.STALLED
        if self._time() >= self._deadline:
            problem = "was not done by the request's deadline"
        return UpstreamTimeout(f"upstream {self.booking.key.upstream} {problem}", kind=kind)

    def _next_held(self) -> Piece:
        piece = self._held.popleft()
        if not self._held and self._transcript.ended and self._streams:
            self._over = True
            self.booking.ended(self._time())
        return piece

    def _raise_if_broken(self, piece: Piece | None) -> None:
        """Raise UpstreamError if the answer broke off: by an error, or by an end too early.

        ``piece`` is the last piece that came; None: the body has ended.
        """
        transcript, dialect = self._transcript, self.dialect
        if dialect is None:
            return
        if piece is None:
            if transcript.content and not transcript.whole:
                raise UpstreamProtocolError(
                    f"upstream {self._name} ended before its answer did", kind=FailureKind.CUT
                )
        elif transcript.error is not None and piece.events:
            transcript.size -= len(piece.data)  # the client does not get the bytes of this piece
            error = error_in_answer(
                transcript.error, self._name, self._headers, dialect, self.call.id
            )
            if isinstance(error, UpstreamRefused):
                error.event = error_event(piece.data)
            raise error

    async def _close(self, error: BaseException | None) -> None:
        """Close the socket, and book the call unless it is booked. A second call does nothing."""
        self._over = True
        timeouts, self.timeouts = self.timeouts, None
        if timeouts is not None:
            timeouts.append(self._timeout)
        closing, self._closing = self._closing, None
        try:
            if closing is not None:
                try:
                    await self._source.aclose()
                finally:
                    await closing(error)
        finally:
            if not self.booking.booked:
                self._leave()

    def _leave(self) -> None:
        """Book a call whose answer is not read any further."""
        transcript, dialect = self._transcript, self.dialect
        at_finish = dialect is not None and dialect.ends_at_finish and transcript.finished
        if transcript.error is None and (transcript.ended or at_finish):
            self.booking.ended(self._time())
        else:
            self.booking.left(self._time())

    async def _fail(self, error: HeadstartError) -> None:
        """Book a call that failed, and close it."""
        self._over = True
        now = self._time()
        if isinstance(error, RequestError):
            self.booking.dropped(now)
        else:
            failure = classify_failure(error, self.clock())
            if self.call.relayed:
                failure = limit_relayed_pause(failure)
            self.booking.failed(failure, now)
            if isinstance(error, UpstreamRefused) and failure.ends_with_time:
                error.queues = self.booking.others_are_answered(failure, now)
        await self._close(error)


async def open_answer(reply: Reply, dialect: Dialect | None, request_id: str) -> list[Piece]:
    """Read an answer up to its first content; return the pieces until then.

    Without ``dialect``, content cannot be recognised, so the first bytes count as content. Raises
    UpstreamRefused, AnswerWithheld, or, for a redirect or an empty stream, UpstreamProtocolError.
    """
    if 300 <= reply.status < 400:
        raise _redirected(reply)
    if reply.status >= 400:
        raise await _refusal(reply, dialect, request_id)
    held: list[Piece] = []
    held_bytes, transcript = 0, reply.transcript
    async for piece in reply.pieces:
        held.append(piece)
        held_bytes += len(piece.data)
        if transcript.error is not None and dialect is not None:
            raise error_in_answer(
                transcript.error, reply.upstream, reply.headers, dialect, request_id
            )
        if transcript.content or held_bytes > HELD_BYTES or (held_bytes and dialect is None):
            return held
        if transcript.ended:
            break
    # The answer has ended without text, reasoning, refusal or tool call. It is still an answer if
    # it has other content (``extras``), or if the caller's limit left no room for text (``cut``).
    if dialect is None or transcript.extras or transcript.cut or reply.status != 200:
        return held
    if not transcript.whole:
        raise UpstreamProtocolError(
            f"upstream {reply.upstream} answered with nothing", kind=FailureKind.EMPTY
        )
    raise _withheld(reply, held)


def _withheld(reply: Reply, held: list[Piece]) -> AnswerWithheld:
    """Return the error of a whole answer without content. It keeps the answer, with its pieces."""
    transcript = reply.transcript
    return AnswerWithheld(
        f"upstream {reply.upstream} ended its answer without content",
        kind=FailureKind.FILTERED if transcript.filtered else FailureKind.EMPTY,
        reply=Reply(  # with nothing left to read or close
            reply.upstream,
            reply.status,
            reply.headers,
            replayed(held),
            transforms=reply.transforms,
            transcript=transcript,
        ),
        finished=transcript.finished,
    )


async def open_relayed(reply: Reply, unix: float) -> list[Piece]:
    """Decide whether the answer to a relayed call is a failure; return the pieces that were read.

    Only an error status is read. Raises UpstreamRefused if the upstream failed. All other errors
    are answers, and are passed on byte for byte; so are errors longer than ``REFUSAL_BYTES``.
    """
    if reply.status < 400:
        return []
    held, is_whole = await read_up_to(reply, REFUSAL_BYTES)
    if not is_whole:
        return held
    refused = UpstreamRefused(
        f"upstream {reply.upstream} answered {reply.status}",
        status=reply.status,
        headers=reply.headers,
        body=b"".join([piece.data for piece in held]),
        code="upstream_error",
        upstream=reply.upstream,
    )
    if fails_relayed(reply.status, failure_of(refused, unix)):
        raise refused
    return held


def _redirected(reply: Reply) -> UpstreamProtocolError:
    named = dict(reply.headers).get(b"location", b"").decode("latin-1")
    where = f" to {masked_url(named)[:_SHOWN_CHARACTERS]}" if named else ""
    return UpstreamProtocolError(
        f"upstream {reply.upstream} sent a redirect{where}, and Headstart follows none: set "
        f"upstream.base_url to the address that answers itself",
        kind=FailureKind.REDIRECTED,
    )


async def _refusal(reply: Reply, dialect: Dialect | None, request_id: str) -> UpstreamRefused:
    """Read an answer with an error status; return it as an error."""
    pieces, is_whole = await read_up_to(reply, REFUSAL_BYTES)
    reported = [error for piece in pieces if (error := error_in(piece.events))]
    event = reported[-1] if reported else None
    message = event.message if event is not None else f"the upstream answered {reply.status}"
    body, headers = b"".join([piece.data for piece in pieces]), reply.headers
    if not is_whole and dialect is not None:
        event = ErrorReported(message=message, status=reply.status)
        body = dialect.error_body(event, request_id)
        headers = headers_for_own_body(headers, dialect)
    return UpstreamRefused(
        f"upstream {reply.upstream}: {message}",
        status=reply.status,
        headers=headers,
        body=body,
        code=safe_code(event),
        upstream=reply.upstream,
    )


# --- time limits ----------------------------------------------------------------------------------

LONGEST_TIMER_S = 2.0
"""The longest time until a timer fires and checks the present wait. So a wait that ends earlier
than the one before rarely needs a new timer, and most calls need only one timer."""
STOOD_STILL_S = 0.5
"""If a timer fires later than this, the process did not run for a while. It was paused (``docker
pause``, SIGSTOP, a virtual machine that was moved), or the machine was overloaded."""
CATCH_UP_S = 0.5
"""Extra seconds for a wait after the process did not run, to read what has arrived meanwhile."""


class ReusableTimeout:
    """Bounds waits like ``asyncio.timeout_at``, but with one timer for many waits.

    ``timeout_at`` sets and clears a timer for each piece, which costs more than all other work for
    the piece. Here the timer, when it fires, checks the present wait, and starts again if that wait
    has time left. For example, a wait until 60 s starts the timer, which fires at 2 s. A piece
    comes at 1 s, and the next wait is until 61 s: at 2 s the timer starts again. If nothing comes,
    it fires last at 61 s, and cancels the task.

    A cancellation from elsewhere is raised, as with ``timeout_at``. If the process did not run for
    a while, a wait gets ``CATCH_UP_S`` more: its value may have arrived, but the event loop has not
    seen it yet. After the last wait the timer runs on: another call may use it.
    """

    __slots__ = ("_expired", "_extended", "_fires_at", "_loop", "_task", "_timer", "_until", "time")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = math.inf  # when the timer fires; infinite once it has fired
        self._task: asyncio.Task[object] | None = None  # the task that waits at present
        self._until = math.inf  # the end of the present or last wait
        self._extended = math.inf  # the end of the wait that was extended last
        self._expired = False  # the timer has cancelled the task, which has not seen it yet

    async def within(self, wait: Awaitable[T], until: float) -> T:
        """Await a value. Raises TimeoutError at ``until``."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        cancelled_before = task.cancelling()
        self._until = until
        if until < self._fires_at:
            self._start(until)
        self._task = task
        try:
            return await wait
        except asyncio.CancelledError as error:
            # Our timer cancels the task once. Any further cancellation came from elsewhere.
            if self._expired and task.cancelling() <= cancelled_before + 1:
                raise TimeoutError from error
            raise
        finally:
            self._task = None
            if self._expired:
                self._expired = False
                task.uncancel()

    def stop(self) -> None:
        """Clear the timer, because nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, until: float) -> None:
        self.stop()
        now = self._loop.time()
        self._fires_at = max(now, min(until, now + LONGEST_TIMER_S))
        self._timer = self._loop.call_at(self._fires_at, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        stood_still = now - self._fires_at > STOOD_STILL_S
        self._timer = None
        self._fires_at = math.inf
        if self._task is None:
            return
        was_extended = self._until == self._extended
        if stood_still and now >= self._until and not was_extended:
            self._until = self._extended = now + CATCH_UP_S
        if now < self._until:
            self._start(self._until)
        elif not self._expired:
            self._expired = True
            self._task.cancel()
