"""Hedging: when to ask a second upstream, and how often that may happen.

Dean and Barroso, "The Tail at Scale" (CACM 2013): ask another one once the first took longer than
most calls do. A call in ``1 / extra_calls`` is then asked twice.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from headstart.policies.routing.quantiles import LATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.attempts import Outlook

WINDOW = 1000
"""Requests over which a budget holds."""
BURST = 10.0
"""Extra calls that may be saved up."""
START = 3.0
"""Extra calls that a new budget has, as far as it allows so many among 1,000 requests: a process
that has just started may hedge its first calls."""
UNKNOWN_S = 2.0
"""Delay while too little is known; the p95 of the quicker public models lies below."""
FEW_SAMPLES = 20
STALL = 3.0
"""Three times its p75, no body of times to first token (lognormal, sigma up to 1) has a p95."""


def hedge_delay_s(
    outlooks: Sequence[Outlook],
    *,
    extra_calls: float = 0.05,
    floor_s: float = 0.05,
    deadline_in_s: float | None = None,
) -> float | None:
    """Return after how long without a first token to ask the next one, or None: not at all.

    ``outlooks`` are in the order in which they would be asked. The delay is the first's time to
    first token that a share ``extra_calls`` of its calls exceeds, so that the budget is what it
    takes; where more of them than that stall, it is where a stall is told from a slow call. Nobody
    is hedged while everyone is degraded, or when nobody else is ready.
    """
    others = outlooks[1:]
    if all(each.degraded for each in outlooks) or not any(each.ready for each in others):
        return None
    first = outlooks[0]
    known = first.samples >= FEW_SAMPLES and len(first.late_ttft_s) == len(LATE)
    delay_s = _late_s(first.late_ttft_s, extra_calls) if known else UNKNOWN_S
    delay_s = max(floor_s, delay_s)
    return delay_s if deadline_in_s is None else min(delay_s, max(0.0, deadline_in_s / 2))


def _late_s(late_s: Sequence[float], share: float) -> float:
    """Return the time that ``share`` of the calls exceed, between the known ones by logarithms."""
    share = min(max(share, LATE[-1]), LATE[0])
    upper = next(i for i in range(1, len(LATE)) if LATE[i] <= share)
    inside = math.log(LATE[upper - 1] / share) / math.log(LATE[upper - 1] / LATE[upper])
    stalled_s = STALL * late_s[LATE.index(0.25)]
    sooner_s, later_s = min(late_s[upper - 1], stalled_s), min(late_s[upper], stalled_s)
    return sooner_s * math.pow(later_s / sooner_s, inside)


def hedge_usd(first: Outlook, second: Outlook) -> tuple[float, float]:
    """Return what a request earns for the budget, and what a hedge of it may waste, in dollars.

    Either of the two may be the one that is cancelled. A share of nothing is nothing, so where the
    first is free a request earns what it would cost at the second. Where a price is unknown dollars
    limit nothing, and calls alone are counted.
    """
    if first.cost_usd is None or second.cost_usd is None:
        return 0.0, 0.0
    return first.cost_usd or second.cost_usd, max(first.waste_usd or 0.0, second.waste_usd or 0.0)


class ExtraBudget:
    """A budget of extra calls and extra dollars, as shares of the requests and of their cost.

    Among the last 1,000 requests extra calls never exceed the share ``calls``, so in no window of
    1,000 do they; and what a spend adds never brings extra dollars over the share ``usd`` of what
    those requests cost. While there are fewer requests the same holds, but for a start: three
    calls, and the dollars of three requests, or what 1,000 requests allow if that is less. A token
    bucket spreads the calls: at most ten can be saved up.
    """

    def __init__(self, calls: float, usd: float) -> None:
        self.calls = calls
        self.usd = usd
        self._start = min(START, calls * WINDOW)
        self._saved = self._start
        self._window: deque[list[float]] = deque()
        self._totals = [0.0, 0.0, 0.0]

    def earn(self, usd: float) -> None:
        """A request came that costs this much by itself."""
        self._window.append([0.0, 0.0, usd])
        self._totals[2] += usd
        if len(self._window) > WINDOW:
            oldest = self._window.popleft()
            self._totals = [total - old for total, old in zip(self._totals, oldest, strict=True)]
        self._saved = min(BURST, self._saved + self.calls)

    def spend(self, usd: float) -> bool:
        """Take one extra call that wastes this much, if both budgets allow it."""
        calls, spent, earned = self._totals
        requests = len(self._window)
        allowed = max(self._start, self.calls * requests) + 1e-9
        if self._saved < 1.0 - 1e-9 or calls + 1 > allowed or not requests:
            return False
        share = max(self.usd, min(START, self.usd * WINDOW) / requests)
        if usd > 0.0 and spent + usd > share * earned * (1 + 1e-9):
            return False
        self._saved -= 1.0
        for i, amount in enumerate((1.0, usd)):
            self._window[-1][i] += amount
            self._totals[i] += amount
        return True

    @property
    def calls_used(self) -> float:
        """Extra calls among the last 1,000 requests, as a share of them."""
        return self._totals[0] / len(self._window) if self._window else 0.0

    @property
    def usd_used(self) -> float:
        """Extra dollars among them, as a share of their cost."""
        return self._totals[1] / self._totals[2] if self._totals[2] > 0.0 else 0.0
