"""One upstream call as it is measured, reported to health and booked: each exactly once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole, Tokens
from headstart.policies.cost import Price, cancelled_cost_usd
from headstart.policies.routing.failures import FailureKind

if TYPE_CHECKING:
    from headstart.interfaces import UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.conditions import Condition, Conditions
    from headstart.middleware.upstreams.ledger import CostOf, Ledger
    from headstart.middleware.upstreams.opening import Progress
    from headstart.policies.routing.failures import Failure
    from headstart.policies.routing.health import Permit
    from headstart.policies.routing.measures import Key
    from headstart.types import Call

CHARACTERS_PER_TOKEN = 4.0
"""For estimates of what was not reported (OpenAI's rule of thumb for English)."""


_BILLED = (FailureKind.SILENT, FailureKind.TIMEOUT, FailureKind.FILTERED)
"""Failures before the first content that the provider worked for."""

_UNUSED = (FailureKind.BAD_REQUEST, FailureKind.CONTEXT_TOO_LONG, FailureKind.NO_SUCH_MODEL)
"""Refusals that cost a caller nothing: the tokens asked for must not cost all others theirs."""


class Terms(NamedTuple):
    """What a call is billed by."""

    price: Price | None
    expected_output: float
    cancels_billing: bool


class Recording:
    """What becomes of one call. Nothing here awaits, so it is complete under any cancellation.

    ``now`` is the event loop's time, ``at`` the start in Unix seconds.
    """

    __slots__ = (
        "_booked", "_characters", "_condition", "_conditions", "_last", "_ledger", "_permit",
        "_reserved", "_terms", "_usage", "at", "began", "call", "first_at", "key", "status",
        "streams",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        key: Key,
        *,
        permit: Permit,
        condition: Condition,
        conditions: Conditions,
        ledger: Ledger,
        terms: Terms,
        now: float,
        at: float,
        reserved: int = 0,
    ) -> None:
        self.call = call
        self.key = key
        self._permit = permit
        self._condition = condition
        self._conditions = conditions
        self._ledger = ledger
        self._terms = terms
        self._booked = False
        self._reserved = reserved
        self.streams = call.request is not None and (call.request.stream or call.fold)
        self._last = now
        self.at = at
        self.began = now
        self.first_at: float | None = None
        self.status = 0
        self._characters = 0
        self._usage: Tokens | None = None
        conditions.measures.began(key, now)

    def answered(self, reply: UpstreamReply, now: float, unix: float) -> None:
        """Status and headers came; ``unix`` is now in Unix seconds."""
        self.status = reply.status
        self._condition.limits.learn(reply.headers, now, unix)

    def first(self, now: float) -> None:
        """The first content came: a breaker that probes need not wait for the end."""
        self.first_at = self._last = now
        if self.streams:
            self._conditions.measures.first(
                self.key, self.call.prompt_tokens, now - self.began, now
            )
        if self._permit.probe or self._permit.insisted:
            self._condition.breaker.succeeded(self._permit, now)

    def piece(self, now: float) -> None:
        """Another piece came after the first content."""
        self._conditions.measures.gap(self.key, now - self._last)
        self._last = now

    def learn(self, progress: Progress, dialect: Dialect | None) -> None:
        """Take over what the answer told of its tokens; before the call is booked."""
        self._characters = progress.characters
        if progress.usage is not None and dialect is not None:
            self._usage = dialect.tokens(progress.usage)

    def ended(self, now: float) -> None:
        """The answer was read to its clean end."""
        if self._booked:
            return
        self._condition.breaker.succeeded(self._permit, now)
        tokens = self._tokens()
        measures = self._conditions.measures
        if self._usage is not None:
            measures.prompt(self.key, self.call.prompt_tokens, tokens.prompt, now)
        measures.length(self.call.place, tokens.completion, now)
        if self.streams and self.first_at is not None:
            measures.speed(self.key, tokens.completion, self._last - self.first_at, now)
        self._conditions.affinities.served(self.call.affinity, self.key.upstream, now)
        price = self._terms.price
        cost_usd = None if price is None else price.cost_usd(tokens)
        self._book(AttemptOutcome.WON, now, tokens, cost_usd)

    def failed(self, failure: Failure, now: float) -> None:
        """It failed, before its first content or after.

        Nobody is to blame for what fails after it lost, or when its caller's time is over.
        """
        if self._booked:
            return
        if self._ledger.ruling(self.call.id, self.call.branch) is not None:
            self.left(now)
            return
        if self.call.deadline is not None and now >= self.call.deadline:
            self._condition.breaker.neutral(self._permit)
        else:
            self._condition.breaker.failed(self._permit, failure, now)
        if failure.kind in _UNUSED:
            self._condition.limits.give_back(self._reserved, now)
        begun = self.first_at is not None
        outcome = AttemptOutcome.BROKEN if begun else AttemptOutcome.FAILED
        worked = begun or (failure.kind in _BILLED and self.status < 300)
        if not worked and self._usage is None:
            self._book(outcome, now, Tokens(), None if self._terms.price is None else 0.0, failure)
        else:
            self._cut(outcome, now, failure)

    def left(self, now: float) -> None:
        """Nobody reads on: it lost, or nobody waits any longer. Does nothing once it is booked."""
        if self._booked:
            return
        lost = self._ledger.ruling(self.call.id, self.call.branch) is not None
        if lost or self.first_at is not None:
            self._condition.breaker.superseded(self._permit)
        else:
            self._condition.breaker.neutral(self._permit)
        self._cut(AttemptOutcome.ABANDONED, now)

    def dropped(self, now: float) -> None:
        """The call was not made after all."""
        self._booked = True
        self._condition.breaker.neutral(self._permit)
        self._condition.limits.give_back(self._reserved, now)
        self._conditions.measures.ended(self.key, now)

    def _cut(self, outcome: AttemptOutcome, now: float, failure: Failure | None = None) -> None:
        """Book a call that was not read to its end, and what waiting for it has taught."""
        if self.first_at is None and self.streams:
            self._conditions.measures.censored(
                self.key, self.call.prompt_tokens, now - self.began, now
            )
        tokens = self._tokens()
        price, expected_output, cancels_billing = self._terms
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
        prompt = self._conditions.measures.prompt_tokens(self.key, self.call.prompt_tokens)
        return Tokens(prompt, round(self._characters / CHARACTERS_PER_TOKEN))

    def _book(
        self,
        outcome: AttemptOutcome,
        now: float,
        tokens: Tokens,
        cost_usd: float | None,
        failure: Failure | None = None,
        runs_on: CostOf | None = None,
    ) -> None:
        self._booked = True
        first_at = self.first_at if self.streams else None
        decoding_s = 0.0 if first_at is None else self._last - first_at
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
        self._conditions.measures.ended(self.key, now)
        self._ledger.book(self.call.id, attempt, self.call.branch, runs_on=runs_on)
