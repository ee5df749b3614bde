"""Request limits a minute and key, and the headers that OpenAI sends with every answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Callable

_UNLIMITED: Headers = (
    (b"x-ratelimit-limit-requests", b"10000"),
    (b"x-ratelimit-limit-tokens", b"2000000"),
    (b"x-ratelimit-remaining-requests", b"9999"),
    (b"x-ratelimit-remaining-tokens", b"1999000"),
    (b"x-ratelimit-reset-requests", b"6ms"),
    (b"x-ratelimit-reset-tokens", b"30ms"),
)


class Allowance(Frozen):
    """The verdict on one request and the headers that tell the client."""

    headers: Headers
    retry_after_s: float | None = None
    """Seconds until the next request would pass; None when this one does."""


class RateLimit:
    """A token bucket for each credential that refills evenly over a minute."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[bytes, tuple[float, float]] = {}

    def reset(self) -> None:
        """Fill every bucket."""
        self._buckets.clear()

    def take(self, credential: bytes) -> Allowance:
        """Ask for one request of a credential."""
        if self._per_minute is None:
            return Allowance(headers=_UNLIMITED)
        now = self._clock()
        left, then = self._buckets.get(credential, (float(self._per_minute), now))
        a_second = self._per_minute / 60
        left = min(self._per_minute, left + (now - then) * a_second)
        granted = left >= 1
        left -= granted
        self._buckets[credential] = (left, now)
        return Allowance(
            headers=self._headers(left, (self._per_minute - left) / a_second),
            retry_after_s=None if granted else (1 - left) / a_second,
        )

    def _headers(self, left: float, reset_s: float) -> Headers:
        return (
            (b"x-ratelimit-limit-requests", str(self._per_minute).encode()),
            (b"x-ratelimit-remaining-requests", str(math.floor(left)).encode()),
            (b"x-ratelimit-reset-requests", format_duration(reset_s).encode()),
        )


def format_duration(seconds: float) -> str:
    """Format seconds the way OpenAI's headers do: ``12ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"
