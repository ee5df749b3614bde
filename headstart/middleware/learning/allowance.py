"""How many calls of our own, and how much money, learning may spend."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR_S = 3600.0
DAY_S = 86400.0
MINUTE_S = 60.0


class Allowance:
    """Counts calls within the last hour and dollars within the last day. None: no cap."""

    def __init__(
        self,
        max_calls_per_hour: int | None,
        max_usd_per_day: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._max_calls = max_calls_per_hour
        self._max_usd = max_usd_per_day
        self._clock = clock
        self._calls: deque[float] = deque()
        self._paid: deque[list[float]] = deque()
        """Minutes in which something was paid, and how much: a day of them stays small."""

    def take(self) -> bool:
        """Count one call, if it may be made."""
        now = self._clock()
        while self._calls and self._calls[0] <= now - HOUR_S:
            self._calls.popleft()
        while self._paid and self._paid[0][0] <= now - DAY_S:
            self._paid.popleft()
        if self._max_calls is not None and len(self._calls) >= self._max_calls:
            return False
        if self._max_usd is not None and sum(usd for _, usd in self._paid) >= self._max_usd:
            return False
        if self._max_calls is not None:
            self._calls.append(now)
        return True

    def pay(self, cost_usd: float) -> None:
        """Note what a call cost."""
        if self._max_usd is None:
            return
        now = self._clock()
        if self._paid and now - self._paid[-1][0] < MINUTE_S:
            self._paid[-1][1] += cost_usd
        else:
            self._paid.append([now, cost_usd])
