"""The rate limit of a provider, in the time of the caller."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.types import Headers


class RateLimited:
    """Allows ``limit`` calls in ``window_s`` seconds, and counts the answered and refused ones.

    It is a token bucket, which refills steadily. With ``windows``, the whole limit comes back at
    the end of a window instead; the next call then begins another window.
    """

    def __init__(self, limit: int, window_s: float, *, windows: bool = False) -> None:
        self.limit = limit
        self.window_s = window_s
        self.windows = windows
        self.answered = self.refused = 0
        self._left, self._at = float(limit), -math.inf

    def takes(self, now: float) -> bool:
        """Take or refuse a call; return whether it was taken."""
        if not self.windows:
            refilled = (now - self._at) * self.limit / self.window_s
            self._left, self._at = min(self.limit, self._left + refilled), now
        elif now >= self._at + self.window_s:
            self._left, self._at = float(self.limit), now
        takes = self._left >= 1.0
        self._left -= takes
        self.answered += takes
        self.refused += not takes
        return takes

    def ask(self, now: float) -> Headers:
        """Take or refuse a call; return the headers of the answer."""
        self.takes(now)
        return self.headers(now)

    def headers(self, now: float) -> Headers:
        """Return the headers of an answer to a call at this time."""
        if self.windows:
            reset_s = self.wait_s(now)
        else:
            reset_s = (self.limit - self._left) * self.window_s / self.limit
        return (
            (b"x-ratelimit-limit-requests", b"%d" % self.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % self._left),
            (b"x-ratelimit-reset-requests", b"%.3fs" % reset_s),
        )

    def wait_s(self, now: float) -> float:
        """Return the seconds from a refused call until a call is taken again."""
        if self.windows:
            return self._at + self.window_s - now
        return (1.0 - self._left) * self.window_s / self.limit
