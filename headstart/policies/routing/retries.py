"""How many retries there may be, and when."""

from __future__ import annotations

_BASE_S = 0.25
_CAP_S = 8.0
_LONGEST_WAIT_S = 60.0
"""Nobody waits longer for a retry; Portkey's limit on a provider's ``retry-after``, too."""


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
        """Count a call that is not a retry. ``now`` is monotonic seconds."""
        self._level = min(self._burst, self._refilled(now) + self._ratio)

    def spend(self, now: float, *, last: bool) -> bool:
        """Take a retry out of the budget; False: there is none left.

        Half of it is kept for the ``last`` hope of a call: where others can still be asked, a
        retry saves time at most.
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


def backoff_s(attempt: int, draw: float, retry_after_s: float | None) -> float:
    """Return how long to wait before retry number ``attempt``, the first being 0.

    Full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015): uniform in
    [0, min(cap, base x 2^attempt)], ``draw`` being uniform in [0, 1). A provider's own wish is
    never undercut, but spread a little, as all who were refused got the same.
    """
    if retry_after_s is not None:
        return retry_after_s + draw * _BASE_S
    return draw * min(_CAP_S, _BASE_S * 2.0 ** min(attempt, 16))


def fits(delay_s: float, left_s: float | None) -> bool:
    """Tell whether a wait is worth it: what is left of the deadline must also hold the answer."""
    return delay_s <= (_LONGEST_WAIT_S if left_s is None else min(_LONGEST_WAIT_S, left_s / 2))
