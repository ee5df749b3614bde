"""Request and token limits a minute and key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable


class Window(Frozen):
    """One limit as the client is told of it."""

    limit: int
    remaining: int
    reset_s: float
    """Seconds until it is full again."""


class Allowance(Frozen):
    """The verdict on one request and what is left."""

    requests: Window | None
    tokens: Window | None
    retry_after_s: float | None = None
    """Seconds until the next request would pass; None when this one does."""


_UNLIMITED = Allowance(
    requests=Window(limit=10_000, remaining=9_999, reset_s=0.006),
    tokens=Window(limit=2_000_000, remaining=1_999_000, reset_s=0.03),
)


class RateLimit:
    """Token buckets for each credential that refill evenly over a minute."""

    def __init__(
        self, requests: int | None, tokens: int | None, clock: Callable[[], float]
    ) -> None:
        self._requests = None if requests is None else _Buckets(requests)
        self._tokens = None if tokens is None else _Buckets(tokens)
        self._clock = clock

    @property
    def counts_tokens(self) -> bool:
        """True when it matters how many tokens a request asks for."""
        return self._tokens is not None

    def reset(self) -> None:
        """Fill every bucket."""
        for buckets in (self._requests, self._tokens):
            if buckets is not None:
                buckets.clear()

    def take(self, credential: bytes, tokens: int) -> Allowance:
        """Ask for one request of a credential that may use so many tokens, in and out."""
        if self._requests is None and self._tokens is None:
            return _UNLIMITED
        now = self._clock()
        asked = [(b, n) for b, n in ((self._requests, 1), (self._tokens, tokens)) if b is not None]
        wait_s = max(buckets.wait_s(credential, amount, now) for buckets, amount in asked)
        if wait_s == 0:
            for buckets, amount in asked:
                buckets.take(credential, amount)
        return Allowance(
            requests=None if self._requests is None else self._requests.window(credential),
            tokens=None if self._tokens is None else self._tokens.window(credential),
            retry_after_s=wait_s or None,
        )


class _Buckets:
    """One bucket a credential."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: dict[bytes, tuple[float, float]] = {}

    def clear(self) -> None:
        self._left.clear()

    def wait_s(self, credential: bytes, amount: int, now: float) -> float:
        """Refill, and return the seconds until the amount is there; more than all never waits."""
        left, then = self._left.get(credential, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - then) * self._per_minute / 60)
        self._left[credential] = (left, now)
        return max(0.0, (min(amount, self._per_minute) - left) * 60 / self._per_minute)

    def take(self, credential: bytes, amount: int) -> None:
        left, then = self._left[credential]
        self._left[credential] = (left - min(amount, self._per_minute), then)

    def window(self, credential: bytes) -> Window:
        left, _ = self._left[credential]
        return Window(
            limit=self._per_minute,
            remaining=math.floor(left),
            reset_s=(self._per_minute - left) * 60 / self._per_minute,
        )
