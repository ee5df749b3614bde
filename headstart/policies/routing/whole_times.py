"""Computes the time to the first token, and the speed, from the times of whole answers.

An answer that is not streamed has one time: time to first token + tokens / tokens per second. The
lengths of answers differ, so a line through (tokens, seconds) gives both. Pure.
"""

from __future__ import annotations

import math

_PRIOR = 0.25
"""The weight of the prior, in squared mean lengths. The prior assumes that the whole time is
decoding time, and matters while the lengths hardly differ: 20 answers whose lengths vary by half
weigh 5."""
_OUTLIER = 4.0
"""A time counts as at most this multiple of the expected time, so that a stall does not bend the
line."""
_ENOUGH = 8.0


class WholeTimes:
    """A least-squares line whose old samples fade, in constant memory.

    The sums are of deviations from the means (Welford, 1962; West, 1979), which stay exact for
    long answers. The line always goes through the means, so the expected time of an answer of
    usual length is right even where its parts cannot be told apart. Both parts are at least 0.
    """

    __slots__ = ("_at", "_half_life_s", "_n", "_seconds", "_sxx", "_sxy", "_tokens")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._at = 0.0
        self._n = self._tokens = self._seconds = self._sxx = self._sxy = 0.0

    def add(self, tokens: int, seconds: float, now: float) -> None:
        """Learn an answer from its number of tokens and its time."""
        n = self.weight(now)
        if n >= _ENOUGH:
            first_s, token_s = self.line()
            seconds = min(seconds, _OUTLIER * (first_s + tokens * token_s))
        fade = n / self._n if self._n else 0.0
        total = n + 1.0
        apart = tokens - self._tokens
        self._tokens += apart / total
        late_s = seconds - self._seconds
        self._seconds += late_s / total
        self._sxx = self._sxx * fade + apart * (tokens - self._tokens)
        self._sxy = self._sxy * fade + late_s * (tokens - self._tokens)
        self._n, self._at = total, now

    def weight(self, now: float) -> float:
        """Return the number of its samples. A sample that is a half-life old counts half."""
        return self._n * math.exp2((self._at - now) / self._half_life_s) if self._n else 0.0

    def line(self) -> tuple[float, float]:
        """Return the seconds before the first token, and the seconds of each token."""
        if not self._tokens:
            return self._seconds, 0.0
        steepest = self._seconds / self._tokens
        prior = _PRIOR * self._tokens * self._tokens
        slope = (self._sxy + prior * steepest) / (self._sxx + prior)
        token_s = min(max(slope, 0.0), steepest)
        return self._seconds - token_s * self._tokens, token_s

    def saved(self, now: float) -> tuple[float, float, float, float, float]:
        """Return its sums as of ``now``."""
        weight = self.weight(now)
        fade = weight / self._n if self._n else 0.0
        return weight, self._tokens, self._seconds, self._sxx * fade, self._sxy * fade

    def load(self, saved: tuple[float, float, float, float, float], now: float) -> None:
        """Take over saved sums, as if their samples had come at ``now``."""
        self._n, self._tokens, self._seconds, self._sxx, self._sxy = saved
        self._at = now
