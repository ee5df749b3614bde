"""Averages that forget with time, in constant memory."""

from __future__ import annotations

import math


class Ratio:
    """A ratio of two sums whose old terms fade: tokens to seconds, or a mean (terms to ones).

    A ratio of sums weighs each call by its size, so a call of ten tokens says less of a speed than
    one of a thousand.
    """

    __slots__ = ("_at", "_half_life_s", "above", "below")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._at = 0.0
        self.above = 0.0
        self.below = 0.0

    def add(self, above: float, below: float, now: float) -> None:
        fade = math.exp2((self._at - now) / self._half_life_s) if self.below else 0.0
        self.above = self.above * fade + above
        self.below = self.below * fade + below
        self._at = now

    @property
    def value(self) -> float | None:
        return self.above / self.below if self.below else None


class Peak:
    """How many times slower than usual calls are now: 1 or more.

    Peak-EWMA, as in Finagle's load balancer of that name: it rises with a slow call at once and
    sinks back with time constant ``TAU_S``. Models stall now and then for seconds, which says
    nothing of the next call, so it takes three slow calls in a row (one chance in 8,000 while all
    is as usual), and the least slow one counts.
    """

    TAU_S = 30.0
    __slots__ = ("_at", "_before", "_earlier", "_level")

    def __init__(self) -> None:
        self._level = 1.0
        self._before = 1.0
        self._earlier = 1.0
        self._at = 0.0

    def add(self, times: float, *, slow: bool, now: float) -> None:
        """Learn that a call took so many times the usual; ``slow``: that is beyond its p95."""
        times = times if slow else 1.0
        self._level = max(self.value(now), min(times, self._before, self._earlier))
        self._before, self._earlier = times, self._before
        self._at = now

    def value(self, now: float) -> float:
        return 1.0 + (self._level - 1.0) * math.exp((self._at - now) / self.TAU_S)
