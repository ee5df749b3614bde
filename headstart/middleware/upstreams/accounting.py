"""The health and figures of upstreams, and the books of the calls that they get.

The last part tells why a call failed, and what follows from it.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError

from headstart.attempts import WON, Attempt, AttemptOutcome, Tokens
from headstart.errors import (
    HeadstartError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from headstart.policies.cost import Price, cancelled_cost_usd
from headstart.policies.routing.failures import (
    CircuitBreaker,
    FailureKind,
    RetryBudget,
    failure,
    failure_of,
)
from headstart.policies.routing.measures import Affinities, Measures, UpstreamModel
from headstart.policies.routing.prompt_cache import PrefixReuse
from headstart.policies.routing.rate_limits import (
    RateLimits,
    Taken,
    limit_places,
    limit_windows,
)
from headstart.policies.routing.schedule import ExtraBudget
from headstart.reply import AnswerWithheld, Reply, Transcript
from headstart.sockets import NameLookups, reason_of, why_no_tls

if TYPE_CHECKING:
    from headstart.attempts import CostOf
    from headstart.dialects.dialect import Dialect
    from headstart.dialects.registry import DocumentForm
    from headstart.middleware.client_ledger import Reservation
    from headstart.policies.routing.failures import Failure, Permit
    from headstart.settings import UpstreamSettings
    from headstart.types import Call

_NO_LOCK = nullcontext()
_Place: TypeAlias = tuple[str, str, str]
MOST_STATES = 1024
"""Most states that are kept in memory."""


@dataclass(slots=True, eq=False, repr=False)
class UpstreamState:
    """Health and limits of one (upstream, model, key).

    A call holds ``lock`` while it asks for permission, because other processes may share the state.
    ``queued`` is the number of calls that wait for the rate limit. The first of them holds
    ``queue``, which is a fair lock. ``answered_at`` is the time of the last answer.
    """

    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    limits: RateLimits = field(default_factory=RateLimits)
    lock: AbstractContextManager[None] = _NO_LOCK
    queue: asyncio.Lock = field(default_factory=asyncio.Lock)
    queued: int = 0
    answered_at: float = -math.inf


class UpstreamStates:
    """The states of all targets. Beyond ``most`` the least recently used are dropped.

    Callers choose names of models. So models that have never answered are in a table of their own,
    of the same length: invented names cannot displace real models.
    """

    def __init__(self, *, most: int = MOST_STATES) -> None:
        self.measures = Measures()
        self.affinities = Affinities()
        self.reuse = PrefixReuse()
        self.hedges: dict[tuple[str, str], ExtraBudget] = {}
        """The budgets of hedges, by the route's name and the composition of the strategy."""
        self._most = most
        self._proven: OrderedDict[_Place, UpstreamState] = OrderedDict()
        self._unproven: OrderedDict[_Place, UpstreamState] = OrderedDict()

    def of(self, upstream: str, model: str, key: str) -> UpstreamState:
        """Return the state of an upstream's model under a key. Never log the key."""
        place = (upstream, model, key)
        state = self._proven.get(place)
        if state is not None:
            self._proven.move_to_end(place)
            return state
        state = self._unproven.pop(place, None) or self.make(*place)
        table = self._proven if state.breaker.proven else self._unproven
        table[place] = state
        if len(table) > self._most:
            table.popitem(last=False)
        return state

    def make(self, upstream: str, model: str, key: str) -> UpstreamState:  # noqa: ARG002 - others tell them apart
        """Return a new state for a model that was not called lately."""
        return UpstreamState()

    def extra_budget(self, route: str, composition: str, calls: float, usd: float) -> ExtraBudget:  # noqa: ARG002 - the same
        """Return the budget of extra calls of a strategy of a route."""
        return ExtraBudget(calls, usd)

    def retry_budget(self, route: str, composition: str) -> RetryBudget:  # noqa: ARG002 - the same
        """Return the budget of retries of a strategy of a route."""
        return RetryBudget()

    def open_for_s(self, upstream: str, key: str, now: float) -> float:
        """Return the seconds for which circuit breakers of an upstream's models are open."""
        waits = [
            state.breaker.open_for_s(now)
            for (name, _, of), state in self.items()
            if name == upstream and of == key
        ]
        return max(waits, default=0.0)

    def items(self) -> tuple[tuple[_Place, UpstreamState], ...]:
        """Return all states with their upstream, model and key, for metrics and pages."""
        return (*self._proven.items(), *self._unproven.items())


MOST_GAPS = 256
"""Gaps between pieces are learned in groups of this number. The rest is learned at the end."""
_BILLED = (FailureKind.SILENT, FailureKind.TIMEOUT, FailureKind.FILTERED)
"""Failures before the first content for which the provider has worked."""

MOST_TOKENS = 10_000_000
"""No answer has this many tokens. Larger limits of callers are read as this one."""
LATELY_S = 10.0
"""After this many seconds without an answer, a rate limit is assumed to last, such as one of a
day."""
_UNUSED = (FailureKind.BAD_REQUEST, FailureKind.CONTEXT_TOO_LONG, FailureKind.NO_SUCH_MODEL)
"""Refusals that cost nothing: the reserved tokens are given back, so that other callers can use
them."""


@dataclass(slots=True, eq=False, repr=False)
class AttemptBooking:
    """Books one attempt. Nothing here awaits, so the row is complete after any cancellation.

    ``began`` is the start in the event loop's time, ``at`` in Unix seconds. The provider's rate
    limits have counted ``reserved_tokens``, with the result ``taken``. ``reservation`` is the cost
    that was reserved in the limits of the caller's key. With ``cancels_billing``, the provider
    bills a cancelled stream only up to its cancellation.
    """

    call: Call
    key: UpstreamModel
    _: KW_ONLY
    permit: Permit
    state: UpstreamState
    states: UpstreamStates
    price: Price | None
    cancels_billing: bool
    began: float
    at: float
    reserved_tokens: int
    taken: Taken
    reservation: Reservation | None
    booked: bool = False
    streams: bool = field(init=False)
    last: float = field(init=False)
    """The time of the last piece with content."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between pieces that are not learned yet."""
    first_at: float | None = None
    status: int = 0
    _transcript: Transcript | None = None
    _dialect: Dialect | DocumentForm | None = None
    stall_limits_s: tuple[float, float] = field(init=False)
    """Seconds for which the answer may be silent: without tools, and with tools."""

    def __post_init__(self) -> None:
        call = self.call
        self.streams = call.request is not None and (call.request.stream or call.streamed_upstream)
        self.last = self.began
        self.stall_limits_s = self.states.measures.began(self.key, self.began)

    def answered(
        self, reply: Reply, dialect: Dialect | DocumentForm | None, now: float, unix: float
    ) -> None:
        """Note status and headers; ``unix`` is now in Unix seconds.

        ``dialect`` reads the usage that the answer reports; None: it cannot be read.
        """
        self.status = reply.status
        self._transcript, self._dialect = reply.transcript, dialect
        limits = self.state.limits
        if reply.status < 400:
            self.state.answered_at = now
            if limits.known and not limits.needs_headers(now):
                return
        elif not any(window.limit for window in limit_windows(reply.headers, unix)):
            # Headers that name no limit say only that nothing is left. The refusal says it, too.
            return
        tells_limits = limit_places[tuple([name for name, _ in reply.headers])]
        if tells_limits and limits.learn(reply.headers, now, unix, self.taken, began=self.began):
            # The headers told the rest of the tokens, in which our reservation is not counted.
            self.reserved_tokens = 0

    def first(self, now: float) -> None:
        """Note the first content. A probe of the circuit breaker succeeds now."""
        self.first_at = self.last = now
        if self.streams:
            self.states.measures.first(self.key, self.call.prompt_tokens, now - self.began, now)
        if self.permit.probe or self.permit.insisted:
            self.state.breaker.succeeded(self.permit, now)

    def usual_speed(self) -> float | None:
        """Return the tokens per second of earlier calls to this upstream and model."""
        return self.states.measures.tokens_per_s(self.key)

    def learn_gaps(self) -> None:
        """Learn the gaps between the pieces so far."""
        if not self.call.relayed:
            self.states.measures.gaps(self.key, self.gaps)
        self.gaps.clear()

    def ended(self, now: float) -> None:
        """Note that the answer was read to its end, which was clean unless it reported an error.

        The end of a whole answer may still fail to be translated.
        """
        transcript = self._transcript
        if self.booked or (transcript is not None and transcript.error is not None):
            return
        call, reported = self.call, self._reported()
        tokens = reported or self._estimated()
        first_at, price = self.first_at, self.price
        cost_usd = None if price is None else price.cost_usd(tokens)
        self.state.breaker.succeeded(self.permit, now)
        if call.affinity:
            self.states.affinities.served(call.affinity, self.key.upstream, now)
        if call.relayed:
            self.states.measures.ended(self.key)
        else:
            self.states.measures.answered(
                self.key,
                now,
                # Nothing about chats can be learned from answers without text.
                route_or_endpoint=call.endpoint
                if call.output_tokens == 0
                else call.route or call.endpoint,
                estimated=call.prompt_tokens,
                reported=0 if reported is None else tokens.prompt,
                completion=tokens.completion,
                decoding_s=self.last - first_at if self.streams and first_at is not None else 0.0,
                gaps=self.gaps,
                whole_s=0.0 if self.streams or first_at is None else self.last - self.began,
            )
        prefix_usd = 0.0 if price is None else price.prefix_saving_usd(tokens)
        known = reported is not None
        self._book(WON, now, tokens, cost_usd, prefix_usd=prefix_usd, reported=known)

    def failed(self, failure: Failure, now: float) -> None:
        """Note a failure, before or after the first content.

        A failure after the call lost, or after its caller's time, does not count against the
        upstream.
        """
        if self.booked:
            return
        if self.call.log.ruling is not None:
            self.left(now)
            return
        if self.call.deadline is not None and now >= self.call.deadline:
            self.state.breaker.neutral(self.permit)
        else:
            self.state.breaker.failed(self.permit, failure, now)
            if failure.ends_with_time and not self.call.relayed:
                pause_s = self.state.breaker.ready_in_s(now)
                self.state.limits.learn_refusal(pause_s, self.began, now)
        if failure.kind in _UNUSED:
            self.state.limits.give_back(self.reserved_tokens, now)
        begun = self.first_at is not None
        outcome = AttemptOutcome.BROKEN if begun else AttemptOutcome.FAILED
        worked = begun or (failure.kind in _BILLED and self.status < 300)
        if not worked and self._reported() is None:
            cost_usd = None if self.price is None else 0.0
            self._book(outcome, now, Tokens(), cost_usd, failure)
        else:
            self._cut(outcome, now, failure)

    def others_are_answered(self, failure: Failure, now: float) -> bool:
        """Tell whether the provider answers other calls, so that it is worth to wait for the limit.

        The last answer must not be older than ``LATELY_S`` at the end of the pause, or than three
        pauses if the provider has asked for the pause. So the call is made as often as an SDK would
        make it.
        """
        if self.states.measures.in_flight(self.key) > 0:
            return True
        pause_s = self.state.breaker.ready_in_s(now)
        age_s = now + pause_s - self.state.answered_at
        told_s = 0.0 if failure.retry_after_s is None else 3.0 * pause_s
        return age_s <= max(LATELY_S, told_s)

    def left(self, now: float) -> None:
        """Book a call whose answer is not read any more: it lost, or its client left.

        Works only once.
        """
        if self.booked:
            return
        lost = self.call.log.ruling is not None
        if lost or self.first_at is not None:
            self.state.breaker.superseded(self.permit)
        else:
            self.state.breaker.neutral(self.permit)
        # The provider has read the prompt, and may cache it.
        if self.call.affinity and self.first_at is not None:
            self.states.affinities.served(self.call.affinity, self.key.upstream, now)
        self._cut(AttemptOutcome.ABANDONED, now)

    def dropped(self, now: float) -> None:
        """Note that the call was not made."""
        self.booked = True
        self.state.breaker.neutral(self.permit)
        self.state.limits.give_back(self.reserved_tokens, now)
        self.states.measures.ended(self.key)
        if self.reservation is not None:
            self.reservation.release()

    def _cut(self, outcome: AttemptOutcome, now: float, failure: Failure | None = None) -> None:
        """Book a call that was not read to its end, and learn from the wait for it."""
        measures, call = self.states.measures, self.call
        if self.first_at is None and self.streams:
            measures.censored(self.key, call.prompt_tokens, now - self.began, now)
        reported = self._reported()
        tokens = reported or self._estimated()
        price, cost_of = self.price, None
        if price is None:
            cost_usd = None
        elif self.cancels_billing and self.streams:
            cost_usd = price.cost_usd(tokens)
        else:
            # A provider may stop billing when a stream is closed, but not for a whole answer.
            cost_of = partial(cancelled_cost_usd, price, tokens, cancels_billing=False)
            expected, most = expected_tokens(call, measures), most_tokens(call)
            cost_usd = cost_of(expected if most is None else min(expected, most))
        self._book(outcome, now, tokens, cost_usd, failure, cost_of, reported=reported is not None)

    def _reported(self) -> Tokens | None:
        """Return the tokens that the answer reported, or None."""
        if self._transcript is None or self._dialect is None:
            return None
        return self._transcript.tokens(self._dialect.tokens)

    def _estimated(self) -> Tokens:
        """Return an estimate of the tokens so far."""
        if self.call.relayed:
            return Tokens()
        transcript = self._transcript
        prompt = self.states.measures.prompt_tokens(self.key, self.call.prompt_tokens)
        return Tokens(prompt, 0 if transcript is None else transcript.estimated_tokens)

    def _book(
        self,
        outcome: AttemptOutcome,
        now: float,
        tokens: Tokens,
        cost_usd: float | None,
        failure: Failure | None = None,
        cost_of: CostOf | None = None,
        *,
        prefix_usd: float = 0.0,
        reported: bool = False,
    ) -> None:
        self.booked = True
        first_at = self.first_at if self.streams else None
        decoding_s = 0.0 if first_at is None else self.last - first_at
        attempt = Attempt(
            self.key.upstream,
            self.key.model,
            self.call.role,
            outcome,
            self.at,
            now - self.began,
            ttft_s=None if first_at is None else first_at - self.began,
            tokens_per_s=tokens.completion / decoding_s if decoding_s > 0 else None,
            status=self.status,
            error=None if failure is None else failure.kind.value,
            reason=None if failure is None else failure.reason,
            prompt_tokens=tokens.prompt,
            completion_tokens=tokens.completion,
            cached_tokens=tokens.cached,
            cost_usd=cost_usd,
            prefix_usd=prefix_usd,
            estimated=not reported and tokens != Tokens(),
            span=self.call.span,
        )
        if outcome is not WON:  # a whole answer was already learned
            gaps = () if self.call.relayed else self.gaps
            self.states.measures.ended(self.key, gaps)
        reservation = self.reservation
        if reservation is None:
            self.call.log.book(attempt, cost_of)
        else:
            reservation.settle(attempt)
            self.call.log.book(attempt, cost_of, reservation.settle)


def reserved_tokens(call: Call, measures: Measures) -> int:
    """Return the tokens that the call may use, in the way in which providers count limits."""
    return call.prompt_tokens + round(most_tokens(call) or expected_tokens(call, measures))


def expected_tokens(call: Call, measures: Measures) -> float:
    """Return the expected length of the answer."""
    if call.output_tokens is not None:
        return call.output_tokens
    return measures.expected_length(call.route_or_endpoint)


def most_tokens(call: Call) -> int | None:
    """Return a call's limit, bounded because callers may send any number."""
    max_tokens = None if call.request is None else call.request.max_tokens
    return None if max_tokens is None else min(max_tokens, MOST_TOKENS)


_NAMED = re.compile(r"^upstream \S+ ")


def _reason_of(error: UpstreamError) -> str | None:
    """Return what an error tells, without the upstream's name and the provider's own words."""
    if isinstance(error, UpstreamRefused):
        return error.reason
    return _NAMED.sub("", str(error), count=1) or None


def classify_failure(error: HeadstartError, unix: float) -> Failure:
    """Return what to do about an error of an upstream; ``unix`` is now in Unix seconds.

    If one upstream's dialect cannot express the request, another upstream may still answer.
    """
    if not isinstance(error, UpstreamError):
        return msgspec.structs.replace(failure(FailureKind.BAD_REQUEST), fail_over=True)
    found = failure_of(error, unix)
    if (reason := _reason_of(error)) is not None:
        found = msgspec.structs.replace(found, reason=reason)
    if isinstance(error, AnswerWithheld) and error.finished:
        # It does not count against the provider: otherwise one caller, with prompts that are
        # filtered, could open the circuit breaker for all callers.
        found = msgspec.structs.replace(found, charges=False)
    return found


_QUOTE = re.compile(r"[:\n]|(?<=Bad status line) ")
"""The place in an error message of aiohttp where it begins to quote the answer."""


def upstream_error(upstream: UpstreamSettings, error: Exception, silent_s: float) -> UpstreamError:
    """Return our error for an error of aiohttp.

    The text of our error goes to the books and the log, so it quotes nothing of the answer.
    ``silent_s`` is the longest wait for bytes of the answer.
    """
    failed: type[UpstreamError] = UpstreamUnreachable
    kind: FailureKind | None = None
    match error:
        case aiohttp.ConnectionTimeoutError():
            failed = UpstreamTimeout
            addresses = (upstream.base_url, upstream.proxy or "")
            named = any(urlsplit(each).hostname in NameLookups.under_way for each in addresses)
            what = "its name was not resolved" if named else "no connection"
            why = f": {what} within upstream.connect_s, {upstream.connect_s:g} s"
        case TimeoutError():
            failed, why = UpstreamTimeout, f" sent nothing for {silent_s:g} s"
        case aiohttp.ClientSSLError():
            why = f": {why_no_tls(error)}"
        case aiohttp.ClientProxyConnectionError():
            why = f": its proxy cannot be reached: {reason_of(error.os_error)}"
        case aiohttp.ClientConnectorDNSError():
            why = f": its name cannot be resolved: {reason_of(error.os_error)}"
        case aiohttp.ClientConnectorError():
            why = f": no connection: {reason_of(error.os_error)}"
        case aiohttp.ClientPayloadError() | PayloadEncodingError():
            failed, why, kind = UpstreamProtocolError, " broke off its answer", FailureKind.CUT
        case aiohttp.ClientHttpProxyError():
            why = f": its proxy answered {error.status}"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            told = _QUOTE.split(error.message, maxsplit=1)[0]
            failed, why = UpstreamProtocolError, f" sent no valid HTTP: {told}"
        case aiohttp.ServerDisconnectedError():
            why = " closed the connection without an answer"
        case OSError() if error.errno:
            why = f": the connection broke: {reason_of(error)}"
        case _:
            why = " closed the connection"
    return failed(f"upstream {upstream.name}{why}", kind=kind)
