"""A provider's rate limits, kept locally so that a call that would be refused is not made.

Providers fill their limits continuously (token buckets: OpenAI, Anthropic, Groq and Cerebras say
so), and a header's ``reset`` is when the limit is whole again. So between two answers a bucket is
refilled at ``(limit - remaining) / reset``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.policies.routing.waits import retry_after_s, windows

if TYPE_CHECKING:
    from headstart.policies.routing.waits import Window
    from headstart.types import Headers

_BELIEVED_S = 3600.0
"""A header is believed for so long: then one call may find out, whatever it said."""
_SHORTEST_RESET_S = 1e-3


@dataclass(slots=True)
class _Bucket:
    level: float
    """At the time ``at``."""
    limit: float
    per_s: float
    at: float
    believed_until: float
    counts_tokens: bool
    partial: bool

    def level_at(self, now: float) -> float:
        return min(self.limit, self.level + max(0.0, now - self.at) * self.per_s)

    def need(self, tokens: int) -> float:
        if not self.counts_tokens or self.partial:
            # How a call's tokens part into directions is not known, so of a limit on one
            # direction only its end is respected.
            return 1.0
        # What is larger than the whole limit can only be tried: waiting would never end.
        return min(float(max(1, tokens)), self.limit)

    def wait_s(self, tokens: int, now: float) -> float:
        missing = self.need(tokens) - self.level_at(now)
        if missing <= 0.0:
            return 0.0
        return max(0.0, min(missing / self.per_s, self.believed_until - now))


class Limits:
    """The limits of one (upstream, model, key). ``now`` is monotonic seconds throughout.

    Nothing is limited until the provider's headers have named a limit.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}

    def learn(self, headers: Headers, now: float, unix: float) -> None:
        """Take over what an answer's headers say; ``unix`` is now in Unix seconds."""
        for window in windows(headers, unix):
            if window.remaining is None:
                continue
            reset_s = window.reset_s
            if window.remaining < 1 and not reset_s:
                reset_s = retry_after_s(headers, unix)
            self._buckets[window.name] = self._fill(window, window.remaining, reset_s, now)

    def ready_in_s(self, tokens: int, now: float) -> float:
        """Return when a call of ``tokens`` (input and reserved output) fits; 0.0: now."""
        waits_s = [bucket.wait_s(tokens, now) for bucket in self._buckets.values()]
        return max(waits_s, default=0.0)

    def allowance(self, now: float) -> float:
        """Return the share of its tightest limit that is left, 1.0 where none is known."""
        return min(
            (each.level_at(now) / each.limit for each in self._buckets.values() if each.limit > 0),
            default=1.0,
        )

    def take(self, tokens: int, now: float) -> None:
        """Count a call that is being made."""
        for bucket in self._buckets.values():
            if not bucket.partial:
                bucket.level = max(0.0, bucket.level_at(now) - bucket.need(tokens))
                bucket.at = now

    def give_back(self, tokens: int, now: float) -> None:
        """Uncount the tokens of a call that was refused: they were never used."""
        for bucket in self._buckets.values():
            if bucket.counts_tokens and not bucket.partial:
                bucket.level = min(bucket.limit, bucket.level_at(now) + bucket.need(tokens))
                bucket.at = now

    def _fill(self, window: Window, remaining: float, reset_s: float | None, now: float) -> _Bucket:
        known = self._buckets.get(window.name)
        limit = window.limit or max(known.limit if known else 1.0, remaining)
        used = limit - remaining
        per_s = limit / window.length_s
        if used > 0 and reset_s:
            per_s = used / max(reset_s, _SHORTEST_RESET_S)
        return _Bucket(
            level=min(remaining, limit),
            limit=limit,
            per_s=per_s,
            at=now,
            believed_until=now + _BELIEVED_S,
            counts_tokens=window.counts_tokens,
            partial=window.counts_tokens and window.partial,
        )
