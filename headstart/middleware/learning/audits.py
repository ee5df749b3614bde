"""Audits of hits: which are checked, what the checks may cost, and their rows in the books."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import Outcome
from headstart.observe import Encoded

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headstart.decisions import LabelSource, UnlabelledPair
    from headstart.middleware.flights import Flight
    from headstart.middleware.request_context import RequestContext
    from headstart.observe import Observation, Observer
    from headstart.settings import AuditSettings

HOUR_S = 3600.0
DAY_S = 86400.0
MINUTE_S = 60.0
SAVED_UP_S = 30.0
"""So many seconds' CPU budget may be saved up for a busy time."""
FIRST_PRICE_S = 0.01
FIRST_PRICES = 5.0
"""Before a comparison was made, its price is taken from so many that cost so much."""
PRICE_MEMORY = 0.99
COMPARED = "compared answers"
"""In the encoder's queue, answers to compare are one tenant. Names of scopes are hashes."""


@dataclass(slots=True, eq=False)
class CallBudget:
    """Counts calls within the last hour and dollars within the last day. None: no cap."""

    max_calls_per_hour: int | None
    max_usd_per_day: float | None
    clock: Callable[[], float]
    _calls: deque[float] = field(default_factory=deque)
    _paid: deque[list[float]] = field(default_factory=deque)
    """The minutes in which something was paid, with the sums. A day has few of them."""

    def take(self) -> bool:
        """Count one call, if it may be made."""
        now = self.clock()
        while self._calls and self._calls[0] <= now - HOUR_S:
            self._calls.popleft()
        while self._paid and self._paid[0][0] <= now - DAY_S:
            self._paid.popleft()
        if self.max_calls_per_hour is not None and len(self._calls) >= self.max_calls_per_hour:
            return False
        paid_usd = sum(usd for _, usd in self._paid)
        if self.max_usd_per_day is not None and paid_usd >= self.max_usd_per_day:
            return False
        if self.max_calls_per_hour is not None:
            self._calls.append(now)
        return True

    def pay(self, cost_usd: float) -> None:
        """Note what a call cost."""
        if self.max_usd_per_day is None:
            return
        now = self.clock()
        if self._paid and now - self._paid[-1][0] < MINUTE_S:
            self._paid[-1][1] += cost_usd
        else:
            self._paid.append([now, cost_usd])


@dataclass(slots=True, eq=False)
class CpuBudget:
    """The CPU that comparisons of answers may take: a share of one core, saved up for a while.

    A comparison is paid when it is drawn, at the typical price: it is made later, when the answer
    is there. As an observer it counts the encodings of ``COMPARED``. ``clock`` returns seconds that
    do not run backwards.
    """

    share: float
    clock: Callable[[], float]
    _taken_s: float = 0.0
    _at: float | None = None
    _count: float = FIRST_PRICES
    _cost_s: float = FIRST_PRICES * FIRST_PRICE_S

    def left(self) -> float:
        """Return the part that is left: 1 after a while without comparisons, 0 or less if none."""
        now, full_s = self.clock(), self.share * SAVED_UP_S
        passed_s = 0.0 if self._at is None else now - self._at
        self._at = now
        self._taken_s = max(0.0, self._taken_s - self.share * passed_s)
        return 1 - self._taken_s / full_s if full_s else 0.0

    def take(self) -> None:
        """Pay for one comparison."""
        self._taken_s += self._cost_s / self._count

    def spend(self, seconds: float) -> None:
        """Note CPU time that a comparison took."""
        self._cost_s += seconds

    def compared(self) -> None:
        """Note that a comparison is done. Old ones count less and less for the price."""
        self._count = PRICE_MEMORY * self._count + 1
        self._cost_s *= PRICE_MEMORY

    def notify(self, observation: Observation) -> None:
        """Note the encoding of an answer that is compared."""
        if isinstance(observation, Encoded) and observation.tenant == COMPARED:
            self.spend(observation.encode_s)


class Audits:
    """Draws audits at random, within their budget. The generator is secret to callers.

    ``background``: the hit is served and the provider asked as well; ``sync``: the caller waits
    for the provider's answer; ``off``: there are no audits.
    """

    def __init__(self, settings: AuditSettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.budget = CallBudget(settings.max_calls_per_hour, settings.max_usd_per_day, clock)
        self._random = random.SystemRandom()

    def rate(self, asked: float) -> float:
        """Return the share of semantic hits to draw; ``asked`` is what their domain asks for."""
        return 0.0 if self.settings.mode == "off" else max(asked, self.settings.rate)

    def draw(self, asked: float) -> bool:
        """Decide on one semantic hit."""
        return self._draw(self.rate(asked))

    def draw_null(self, asked: float = 0.0) -> bool:
        """Decide on one exact hit; only ever in the background, and not at a rate of 0."""
        floor = self.settings.null_rate
        return self.settings.mode == "background" and bool(floor) and self._draw(max(asked, floor))

    def chance(self, share: float) -> bool:
        """Draw with a probability, at no one's expense."""
        return self._random.random() < share

    def _draw(self, rate: float) -> bool:
        return self.chance(rate) and self.budget.take()


def book_audit(
    flight: Flight,
    context: RequestContext,
    audits: Audits,
    observer: Observer,
    pump: asyncio.Task[None],
    *,
    pair: UnlabelledPair,
    source: LabelSource,
    clock: Callable[[], float],
    id: str,
) -> None:
    """Book the cost and the outcome of an audit under a new ``id``, after its pump has ended.

    No client waits for such a call, but it costs money.
    """
    row = context.own_call(flight, Outcome.AUDIT, id, clock())
    if row.cost_usd is not None:
        audits.budget.pay(row.cost_usd)
    error = flight.error
    observer.notify(
        msgspec.structs.replace(
            row,
            domain=pair.domain,
            neighbor=pair.entry.id,
            audit_of=context.id,
            reason=source.value,
            error=type(error).__name__ if error is not None and not pump.cancelled() else None,
        )
    )
