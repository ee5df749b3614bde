"""Protection in an outage: a circuit breaker for each upstream, and a budget of retries.

``now`` is always in monotonic seconds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from headstart.policies.routing.failures import FailureKind

if TYPE_CHECKING:
    from headstart.policies.routing.failures import Failure

_STREAK = 5
_CHANCE = 1e-6
"""A run of failures that one in a million calls meets is no chance."""
_KEPT = 64
_ERROR_RATE = 0.5
_LEAST_CALLS = 10.0
_MEMORY_S = 30.0
_FIRST_OPENING_S = 1.0
_LONGEST_OPENING_S = 20.0
_LONGEST_BACKOFF_S = 30.0
"""The longest closure for a rate limit that never says when it ends."""
_NEEDS_PEOPLE = (FailureKind.UNAUTHORIZED, FailureKind.QUOTA, FailureKind.NO_SUCH_MODEL)
"""A person must fix these. If a call is made anyway, the provider refuses it at once and without
cost."""
_PROBE_S = 60.0
"""A probe that has not reported by then counts as lost, and another may go."""
_NEXT_LOOK_S = 1.0
"""The wait while a probe is out: its report may come any moment."""
_RAMP_S = 10.0
_LEAST_WEIGHT = 0.1
_DEGRADED_RATE = 0.25
_DEGRADED_STREAK = 2
_DEGRADED_S = 10.0
"""So long after a failure it counts as degraded. Then the next call tells its state."""


class Permit(NamedTuple):
    """The permission to make one call. Report its end: ``succeeded``, ``failed``, ``neutral``."""

    generation: int
    probe: bool
    number: int
    at: float
    insisted: bool = False
    """No other upstream was left. A success counts, and a failure does not."""


class CircuitBreaker:
    """Decides whether a provider is asked.

    It is closed, open or half-open as in Nygard's "Release It!". It opens after five charged
    failures in a row (Envoy's outlier detection: consecutive_5xx = 5) or when half of the recent
    calls failed (Hystrix: 50 % over a rolling window, with a least volume). It stays open for 1 s,
    then 2, 4 ... up to 20 s: a call every 4 s still finds a recovered provider within 30 s. Then
    one call probes at a time, and after its success the weight rises over 10 s (Envoy's slow start,
    from 10 %).

    Refusals are quick and answers are slow, so the order of the reports misleads: a provider that
    refuses every third call would seem to refuse them all. So a call counts from its admission on,
    and calls are in a row if they began in a row.

    Reports of an older generation have no effect: they come from a call that began before the
    breaker opened, or from a probe that was given up.
    """

    def __init__(self) -> None:
        self.proven = False
        """It has answered before."""
        self._generation = 0
        self._admitted = 0
        self._unanswered: dict[int, bool] = {}
        """The last calls that brought no answer, by number. True: the call failed."""
        self._streak = 0
        self._calls = 0.0
        self._errors = 0.0
        self._counted_at = 0.0
        self._failed_at = -math.inf
        self._open = False
        self._open_until = -math.inf
        self._openings = 0
        self._probe_until = -math.inf
        self._recovered_at = -math.inf
        self._closed_until = -math.inf
        self._limited_until = -math.inf
        self._avoided_until = -math.inf
        self._refusals = 0
        """Refusals in a row, each of a call that began after the one before."""
        self._refused_at = -math.inf

    def ready_in_s(self, now: float) -> float:
        """Return the seconds until a call would be admitted; 0.0: now."""
        wait_s = self._closed_until - now
        if self._open:
            wait_s = max(wait_s, self._open_until - now, min(self._probe_until - now, _NEXT_LOOK_S))
        return max(0.0, wait_s)

    def open_for_s(self, now: float) -> float:
        """Return the seconds until the next probe of a provider that failed; 0.0: it is closed."""
        return max(0.0, self._open_until - now) if self._open else 0.0

    def avoided_for_s(self, now: float) -> float:
        """Return the seconds for which others should be asked first; 0.0: it is ready."""
        return max(self.ready_in_s(now), self._avoided_until - now)

    def limited(self, now: float) -> bool:
        """Tell whether only a rate limit prevents a call."""
        return now < self._limited_until and not self._open

    def admit(self, now: float) -> Permit | None:
        """Return a permit, or None. In the half-open state only one is out at a time."""
        if self.ready_in_s(now) > 0.0:
            return None
        probe = self._open
        if probe:
            self._generation += 1
            self._probe_until = now + _PROBE_S
        self._fade(now)
        self._calls += 1.0
        self._admitted += 1
        return Permit(self._generation, probe, self._admitted, now)

    def insist(self, now: float) -> Permit:
        """Return a permit for a call that is made in any case."""
        return Permit(self._generation, probe=False, number=0, at=now, insisted=True)

    def succeeded(self, permit: Permit, now: float) -> None:
        """Report an answer. The answer of a probe closes the breaker, and slow start begins."""
        self.proven = True
        if permit.generation != self._generation:
            return
        self._streak = 0
        self._refusals = 0
        self._avoided_until = -math.inf
        if self._open:
            self._open = False
            self._calls = self._errors = 0.0
            self._recovered_at = now
        elif now - self._recovered_at > _RAMP_S:
            self._openings = 0

    def failed(self, permit: Permit, failure: Failure, now: float) -> None:
        """Report a failure. One that does not charge only closes for the time that it names."""
        if failure.closes_s is not None and failure.kind in _NEEDS_PEOPLE:
            self._avoided_until = now + failure.closes_s
        elif failure.closes_s is not None:
            # This holds for every generation: the provider itself named the time.
            self.close_for(self._closure_s(failure, failure.closes_s, permit, now), now)
            if failure.kind is FailureKind.RATE_LIMITED:
                self._limited_until = self._closed_until
        if permit.generation != self._generation or permit.insisted:
            return
        if not failure.charges:
            self.neutral(permit)
            return
        self._fade(now)
        # The error counts as much as its call by now, although its report comes later.
        self._errors += math.exp(-max(0.0, now - permit.at) / _MEMORY_S)
        self._failed_at = now
        self._streak = self._run(permit.number)
        often = self._fails_often(_LEAST_CALLS, _ERROR_RATE)
        if permit.probe or often or self._streak >= self._streak_limit():
            self._trip(now)

    def neutral(self, permit: Permit) -> None:
        """Report a call that neither succeeded nor failed. It does not end a row of failures."""
        self.superseded(permit)
        if permit.generation == self._generation and not permit.insisted:
            self._keep(permit.number, failed=False)

    def superseded(self, permit: Permit) -> None:
        """Report a call that was cancelled because another was faster. It had not failed."""
        if permit.probe and permit.generation == self._generation:
            self._probe_until = -math.inf

    def close_for(self, seconds: float, now: float) -> None:
        """Admit no call for ``seconds``. This does not count as a failure."""
        self._closed_until = max(self._closed_until, now + seconds)

    def degraded(self, now: float) -> bool:
        """Tell whether it is ejected, or failed lately and too often.

        A degraded upstream is asked last, so perhaps never. So the state ends by itself.
        """
        if self._open:
            return self.ready_in_s(now) > 0.0
        return now - self._failed_at < _DEGRADED_S and (
            self._streak >= _DEGRADED_STREAK or self._fails_often(_LEAST_CALLS / 2, _DEGRADED_RATE)
        )

    def weight(self, now: float) -> float:
        """Return the share of its usual calls that it should get: 0 closed, 1 healthy."""
        if self.avoided_for_s(now) > 0.0:
            return 0.0
        if self._open:
            return 1.0  # only one call is admitted, to test whether it has recovered
        return min(1.0, max(_LEAST_WEIGHT, (now - self._recovered_at) / _RAMP_S))

    def _closure_s(self, failure: Failure, closes_s: float, permit: Permit, now: float) -> float:
        if failure.kind is not FailureKind.RATE_LIMITED or failure.retry_after_s is not None:
            return closes_s
        if permit.at > self._refused_at:  # other calls of the same burst say nothing new
            self._refusals = min(self._refusals + 1, 16)
            self._refused_at = now
        return min(_LONGEST_BACKOFF_S, closes_s * 2.0 ** (self._refusals - 1))

    def _trip(self, now: float) -> None:
        self._openings = min(self._openings + 1, 16)
        self._open = True
        self._open_until = now + min(
            _LONGEST_OPENING_S, _FIRST_OPENING_S * 2.0 ** (self._openings - 1)
        )
        self._probe_until = -math.inf
        self._streak = 0
        self._unanswered.clear()
        self._generation += 1

    def _run(self, number: int) -> int:
        """Note that this call failed; return how many calls that began in a row failed."""
        self._keep(number, failed=True)
        run = 1
        for step in (-1, 1):
            at = number + step
            while (failed := self._unanswered.get(at)) is not None:
                run += failed
                at += step
        return run

    def _streak_limit(self) -> int:
        """Return the number of failures in a row that cannot be chance.

        Five in a row can be chance if a provider fails now and then: one that refuses 30 % of the
        calls does that once in 400 calls.
        """
        before = self._calls - self._streak
        if before < _LEAST_CALLS or self._errors <= self._streak:
            return _STREAK
        rate = min(_ERROR_RATE, (self._errors - self._streak) / before)
        return max(_STREAK, math.ceil(math.log(_CHANCE) / math.log(rate)))

    def _keep(self, number: int, *, failed: bool) -> None:
        if len(self._unanswered) >= _KEPT:
            del self._unanswered[next(iter(self._unanswered))]
        self._unanswered[number] = failed

    def _fade(self, now: float) -> None:
        """Let older calls and errors weigh exponentially less."""
        keep = math.exp(-max(0.0, now - self._counted_at) / _MEMORY_S)
        self._counted_at = now
        self._calls *= keep
        self._errors *= keep

    def _fails_often(self, least_calls: float, rate: float) -> bool:
        return self._calls >= least_calls and self._errors >= rate * self._calls


class RetryBudget:
    """Keeps retries a small share of all calls, so that an outage is not multiplied.

    After Finagle's RetryBudget: each call earns a fifth of a retry, and there is a floor for times
    of little traffic. Finagle's floor is ten a second, meant for RPC; calls to language models are
    far fewer and cost money, so here it is one a second, up to ``burst`` at once.
    """

    def __init__(self, ratio: float = 0.2, per_s: float = 1.0, burst: float = 10.0) -> None:
        self._ratio = ratio
        self._per_s = per_s
        self._burst = burst
        self._level = burst
        self._at: float | None = None

    def earn(self, now: float) -> None:
        """Count a call that is not a retry. ``now`` is in monotonic seconds."""
        self._level = min(self._burst, self._refilled(now) + self._ratio)

    def spend(self, now: float, *, last: bool) -> bool:
        """Take a retry out of the budget; False: there is none left.

        Half of the budget is reserved for calls with no other member left (``last``). For other
        calls a retry only saves time.
        """
        self._level = self._refilled(now)
        if self._level < (1.0 if last else self._burst / 2.0):
            return False
        self._level -= 1.0
        return True

    def _refilled(self, now: float) -> float:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        return min(self._burst, self._level + passed * self._per_s)
