"""The health and figures of upstreams, and the books of the calls that they get."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole, Tokens
from headstart.policies.cost import Price, cancelled_cost_usd
from headstart.policies.routing.circuit_breaker import CircuitBreaker
from headstart.policies.routing.failures import FailureKind
from headstart.policies.routing.measures import Affinities, Measures
from headstart.policies.routing.rate_limits import RateLimits
from headstart.transcript import CHARACTERS_PER_TOKEN

if TYPE_CHECKING:
    from headstart.attempts import CostOf
    from headstart.dialects.dialect import Dialect
    from headstart.policies.routing.circuit_breaker import Permit
    from headstart.policies.routing.failures import Failure
    from headstart.policies.routing.measures import UpstreamModel
    from headstart.policies.routing.schedule import ExtraBudget
    from headstart.reply import Reply
    from headstart.transcript import Transcript
    from headstart.types import Call

_Place: TypeAlias = tuple[str, str, str]
MOST_STATES = 1024


class UpstreamState:
    """Health and limits of one (upstream, model, key)."""

    __slots__ = ("breaker", "limits")

    def __init__(self) -> None:
        self.breaker = CircuitBreaker()
        self.limits = RateLimits()


class UpstreamStates:
    """One for all targets: the least recently used leave past ``most``.

    Callers name models. So what never answered has a table of its own, as long as the other:
    made-up names put nothing out that serves.
    """

    def __init__(self, measures: Measures | None = None, *, most: int = MOST_STATES) -> None:
        self.measures = measures or Measures()
        self.affinities = Affinities()
        self.hedges: dict[tuple[str, str], ExtraBudget] = {}
        """What routes may ask twice, by the route's name and the strategy as code has it."""
        self._most = most
        self._proven: OrderedDict[_Place, UpstreamState] = OrderedDict()
        self._unproven: OrderedDict[_Place, UpstreamState] = OrderedDict()

    def of(self, upstream: str, model: str, key: str) -> UpstreamState:
        """Return the condition of an upstream's model under a key. Never log the key."""
        place = (upstream, model, key)
        condition = self._proven.get(place)
        if condition is not None:
            self._proven.move_to_end(place)
            return condition
        condition = self._unproven.pop(place, None) or UpstreamState()
        table = self._proven if condition.breaker.proven else self._unproven
        table[place] = condition
        if len(table) > self._most:
            table.popitem(last=False)
        return condition

    def items(self) -> tuple[tuple[_Place, UpstreamState], ...]:
        """Return all conditions with what they are of, for metrics and pages."""
        return (*self._proven.items(), *self._unproven.items())


MOST_GAPS = 256
"""The gaps between the pieces of an answer are learned when there are so many, or at its end."""
_BILLED = (FailureKind.SILENT, FailureKind.TIMEOUT, FailureKind.FILTERED)
"""Failures before the first content that the provider worked for."""

_UNUSED = (FailureKind.BAD_REQUEST, FailureKind.CONTEXT_TOO_LONG, FailureKind.NO_SUCH_MODEL)
"""Refusals that cost a caller nothing: the tokens asked for must not cost all others theirs."""


class Billing(NamedTuple):
    """What a call is billed by."""

    price: Price | None
    expected_output: float
    cancels_billing: bool


class Recording:
    """What becomes of one call. Nothing here awaits, so it is complete under any cancellation.

    ``now`` is the event loop's time, ``at`` the start in Unix seconds.
    """

    __slots__ = (
        "_billing", "_dialect", "_permit", "_reserved", "_said", "_state", "_states",
        "_transcript", "_usage", "at", "began", "booked", "call", "first_at", "gaps", "key", "last",
        "status", "streams",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        key: UpstreamModel,
        *,
        permit: Permit,
        state: UpstreamState,
        states: UpstreamStates,
        billing: Billing,
        now: float,
        at: float,
        reserved: int = 0,
    ) -> None:
        self.call = call
        self.key = key
        self._permit = permit
        self._state = state
        self._states = states
        self._billing = billing
        self.booked = False
        self._reserved = reserved
        self.streams = call.request is not None and (call.request.stream or call.streamed_upstream)
        self.last = now
        self.gaps: list[float] = []
        """Seconds between pieces that are not learned yet."""
        self.at = at
        self.began = now
        self.first_at: float | None = None
        self.status = 0
        self._said = 0
        self._usage: Tokens | None = None
        self._transcript: Transcript | None = None
        self._dialect: Dialect | None = None
        states.measures.began(key, now)

    def answered(self, reply: Reply, dialect: Dialect | None, now: float, unix: float) -> None:
        """Status and headers came; ``unix`` is now in Unix seconds.

        ``dialect`` reads the usage that the answer reports; None: nobody can.
        """
        self.status = reply.status
        self._transcript, self._dialect = reply.transcript, dialect
        self._state.limits.learn(reply.headers, now, unix)

    def first(self, now: float) -> None:
        """The first content came: a breaker that probes need not wait for the end."""
        self.first_at = self.last = now
        if self.streams:
            self._states.measures.first(self.key, self.call.prompt_tokens, now - self.began, now)
        if self._permit.probe or self._permit.insisted:
            self._state.breaker.succeeded(self._permit, now)

    def learn_gaps(self) -> None:
        """Learn the gaps between the pieces so far."""
        self._states.measures.gaps(self.key, self.gaps)
        self.gaps.clear()

    def _learn(self) -> None:
        """Take over what the answer tells of its tokens."""
        transcript, dialect = self._transcript, self._dialect
        if transcript is not None:
            self._said = round(transcript.characters / CHARACTERS_PER_TOKEN)
            if transcript.usage is not None and dialect is not None:
                self._usage = dialect.tokens(transcript.usage)

    def ended(self, now: float) -> None:
        """The answer was read to its clean end."""
        if self.booked:
            return
        self._learn()
        self._state.breaker.succeeded(self._permit, now)
        tokens = self._tokens()
        measures = self._states.measures
        if self._usage is not None:
            measures.prompt(self.key, self.call.prompt_tokens, tokens.prompt, now)
        measures.length(self.call.route_or_endpoint, tokens.completion, now)
        if self.streams and self.first_at is not None:
            measures.speed(self.key, tokens.completion, self.last - self.first_at, now)
        self._states.affinities.served(self.call.affinity, self.key.upstream, now)
        price = self._billing.price
        cost_usd = None if price is None else price.cost_usd(tokens)
        self._book(AttemptOutcome.WON, now, tokens, cost_usd)

    def failed(self, failure: Failure, now: float) -> None:
        """It failed, before its first content or after.

        Nobody is to blame for what fails after it lost, or when its caller's time is over.
        """
        if self.booked:
            return
        self._learn()
        if self.call.log.ruling is not None:
            self.left(now)
            return
        if self.call.deadline is not None and now >= self.call.deadline:
            self._state.breaker.neutral(self._permit)
        else:
            self._state.breaker.failed(self._permit, failure, now)
        if failure.kind in _UNUSED:
            self._state.limits.give_back(self._reserved, now)
        begun = self.first_at is not None
        outcome = AttemptOutcome.BROKEN if begun else AttemptOutcome.FAILED
        worked = begun or (failure.kind in _BILLED and self.status < 300)
        if not worked and self._usage is None:
            self._book(
                outcome, now, Tokens(), None if self._billing.price is None else 0.0, failure
            )
        else:
            self._cut(outcome, now, failure)

    def left(self, now: float) -> None:
        """Book a call whose answer is not read any more: it lost, or its client left. Only once."""
        if self.booked:
            return
        lost = self.call.log.ruling is not None
        if lost or self.first_at is not None:
            self._state.breaker.superseded(self._permit)
        else:
            self._state.breaker.neutral(self._permit)
        self._cut(AttemptOutcome.ABANDONED, now)

    def dropped(self, now: float) -> None:
        """The call was not made after all."""
        self.booked = True
        self._state.breaker.neutral(self._permit)
        self._state.limits.give_back(self._reserved, now)
        self._states.measures.ended(self.key, now)

    def _cut(self, outcome: AttemptOutcome, now: float, failure: Failure | None = None) -> None:
        """Book a call that was not read to its end, and what waiting for it has taught."""
        if self.first_at is None and self.streams:
            self._states.measures.censored(self.key, self.call.prompt_tokens, now - self.began, now)
        tokens = self._tokens()
        price, expected_output, cancels_billing = self._billing
        if price is None:
            self._book(outcome, now, tokens, None, failure)
        elif cancels_billing and self.streams:
            self._book(outcome, now, tokens, price.cost_usd(tokens), failure)
        else:
            # A provider stops counting when a stream is closed, never for a whole answer.
            runs_on = partial(cancelled_cost_usd, price, tokens, cancels_billing=False)
            self._book(outcome, now, tokens, runs_on(expected_output), failure, runs_on)

    def _tokens(self) -> Tokens:
        if self._usage is not None:
            return self._usage
        prompt = self._states.measures.prompt_tokens(self.key, self.call.prompt_tokens)
        return Tokens(prompt, self._said)

    def _book(
        self,
        outcome: AttemptOutcome,
        now: float,
        tokens: Tokens,
        cost_usd: float | None,
        failure: Failure | None = None,
        runs_on: CostOf | None = None,
    ) -> None:
        self.booked = True
        first_at = self.first_at if self.streams else None
        decoding_s = 0.0 if first_at is None else self.last - first_at
        attempt = Attempt(
            upstream=self.key.upstream,
            model=self.key.model,
            role=AttemptRole(self.call.role),
            outcome=outcome,
            at=self.at,
            total_s=now - self.began,
            ttft_s=None if first_at is None else first_at - self.began,
            tokens_per_s=tokens.completion / decoding_s if decoding_s > 0 else None,
            status=self.status,
            error=None if failure is None else failure.kind.value,
            prompt_tokens=tokens.prompt,
            completion_tokens=tokens.completion,
            cached_tokens=tokens.cached,
            cost_usd=cost_usd,
            estimated=self._usage is None and tokens != Tokens(),
        )
        self.learn_gaps()
        self._states.measures.ended(self.key, now)
        self.call.log.book(attempt, runs_on)
