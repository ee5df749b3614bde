"""Whether a provider has become worse: a sequential test over rounds of measurements. Pure.

Each round gives one number for each figure: the median time to first token, the median speed, the
share of right answers, the share of failed calls. Its p-value is its rank among the earlier rounds
of the same part of the day: as long as nothing changes, the p-values are independent and uniform,
whatever the distribution is (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World,
2005). They are bet against, and the bets are summed up by the Shiryaev-Roberts procedure
R = (1 + R) * bet (Vovk, "Testing randomness online", 2021; Shin, Ramdas and Rinaldo, "E-detectors",
2022). R minus the number of rounds is a martingale, so by Doob's inequality R reaches ``limit``
within m rounds with a probability of at most m / limit, whenever one looks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from hashlib import blake2b
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias

from headstart.lab.bench import Sample  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Figure: TypeAlias = Literal["first token", "speed", "quality", "errors"]
FIGURES: tuple[Figure, ...] = ("first token", "speed", "quality", "errors")
FALSE_ALARMS = 0.05
"""The probability that any alarm of a month is false, over all providers and figures."""
MONTH_S = 30 * 86_400.0
PARTS = 6
"""Parts of the day: a round is compared with rounds of its part, as load follows the hour."""
_LEAST = 10
"""Earlier rounds of the part of the day before a round is bet on."""
_BUSIEST_BET = 1e6


class Round(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """One round of one provider and model, as the history keeps it."""

    at: float
    """Unix seconds."""
    upstream: str
    model: str
    calls: int
    errors: int
    ttft_s: float | None
    tokens_per_s: float | None
    right: float | None
    """Share of right answers; None: no prompt says what is right."""
    cost_usd: float
    """What the round cost."""
    price: tuple[float, float] | None = None
    """Dollars per million tokens of input and output."""
    samples: tuple[Sample, ...] = ()

    def figure(self, name: Figure) -> float | None:
        """Return a figure so that larger is worse."""
        if name == "first token":
            return self.ttft_s
        if name == "errors":
            return self.errors / self.calls
        value = self.tokens_per_s if name == "speed" else self.right
        return None if value is None else -value


class DriftAlarm(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """One figure of one provider and model has changed."""

    at: float
    upstream: str
    model: str
    figure: Figure | Literal["price"]
    before: float
    """The usual value: the median of the earlier rounds; for a price, the output's."""
    now: float
    """The median of the last rounds."""


def limit_for(every_s: float, series: int, false_alarms: float = FALSE_ALARMS) -> float:
    """Return the limit with which ``series`` tests give a false alarm in a month so rarely."""
    return MONTH_S / every_s * max(1, series) / false_alarms


class DriftTest:
    """The test of one figure. ``name`` seeds the draws that break ties between equal values."""

    def __init__(self, name: str, limit: float) -> None:
        self._name = name
        self._limit = limit
        self._draws = 0
        self._forget()

    def _forget(self) -> None:
        self._earlier: list[list[float]] = [[] for _ in range(PARTS)]
        self._last: list[float] = []
        self._evidence = 0.0

    @property
    def evidence(self) -> float:
        """The evidence for a change as a share of what an alarm takes."""
        return self._evidence / self._limit

    def add(self, worse: float, at: float) -> tuple[float, float] | None:
        """Add a round's number; larger is worse. Return the usual and the present one on an alarm.

        After an alarm the test begins anew, with what is usual from now on.
        """
        earlier = self._earlier[int(at % 86_400 * PARTS / 86_400)]
        self._last = [*self._last[-4:], worse]
        if len(earlier) >= _LEAST:
            self._evidence = (1.0 + self._evidence) * _bet(self._rank(worse, earlier))
        insort(earlier, worse)
        if self._evidence < self._limit:
            return None
        usual = median(value for part in self._earlier for value in part)
        found = (usual, median(self._last))
        self._forget()
        return found

    def _rank(self, worse: float, earlier: Sequence[float]) -> float:
        """Return the p-value: the share of rounds that are as bad, with equal ones drawn."""
        below, not_above = bisect_left(earlier, worse), bisect_right(earlier, worse)
        self._draws += 1
        seed = f"{self._name}/{self._draws}".encode()
        draw = int.from_bytes(blake2b(seed, digest_size=6).digest()) / 2**48
        above, equal = len(earlier) - not_above, not_above - below + 1
        return (above + draw * equal) / (len(earlier) + 1)


def _bet(p: float) -> float:
    """Return the payment for a p-value: the mean of e * p ** (e - 1) over all e from 0 to 1."""
    if p >= 1.0:
        return 0.5
    if p <= 1e-9:
        return _BUSIEST_BET
    log = math.log(p)
    if log > -1e-3:  # near 1 both terms of the fraction are tiny
        return 0.5
    return (1.0 - p + p * log) / (p * log * log)


class Watch:
    """The tests of all providers and figures. Feed it the history, then each new round."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._tests: dict[tuple[str, str, Figure], DriftTest] = {}
        self._prices: dict[tuple[str, str], tuple[float, float]] = {}

    def add(self, round: Round) -> list[DriftAlarm]:
        """Return the alarms that a round raises."""
        alarms = list(self._price(round))
        for figure in FIGURES:
            worse = round.figure(figure)
            if worse is None:
                continue
            key = (round.upstream, round.model, figure)
            test = self._tests.get(key)
            if test is None:
                test = self._tests[key] = DriftTest("/".join(key), self._limit)
            found = test.add(worse, round.at)
            if found is not None:
                sign = -1 if figure in {"speed", "quality"} else 1
                before, now = (sign * value for value in found)
                alarms.append(_alarm(round, figure, before, now))
        return alarms

    def evidence(self, round: Round) -> float:
        """Return the largest evidence against a provider as a share of what an alarm takes."""
        place = (round.upstream, round.model)
        return max((t.evidence for key, t in self._tests.items() if key[:2] == place), default=0.0)

    def _price(self, round: Round) -> Iterable[DriftAlarm]:
        place, price = (round.upstream, round.model), round.price
        if price is None:
            return
        before = self._prices.get(place)
        self._prices[place] = price
        if before is not None and before != price:
            differs = int(before[1] != price[1])
            yield _alarm(round, "price", before[differs], price[differs])


def _alarm(
    round: Round,
    figure: Figure | Literal["price"],
    before: float,
    now: float,
) -> DriftAlarm:
    return DriftAlarm(
        at=round.at, upstream=round.upstream, model=round.model, figure=figure, before=before,
        now=now,
    )  # fmt: skip


def round_of(
    samples: Sequence[Sample], at: float, price: tuple[float, float] | None = None
) -> Round:
    """Return the round of the samples of one subject, of which there is at least one."""
    subject = samples[0].subject
    answered = [each for each in samples if each.error is None]
    right = [each.right for each in answered if each.right is not None]
    first = [each.ttft_s for each in answered if each.ttft_s is not None]
    speeds = [each.tokens_per_s for each in answered if each.tokens_per_s is not None]
    return Round(
        at=at,
        upstream=subject.upstream,
        model=subject.model,
        calls=len(samples),
        errors=len(samples) - len(answered),
        ttft_s=median(first) if first else None,
        tokens_per_s=median(speeds) if speeds else None,
        right=sum(right) / len(right) if right else None,
        cost_usd=sum(each.cost_usd or 0.0 for each in samples),
        price=price,
        samples=tuple(samples),
    )


def spent_usd(history: Iterable[Round], now: float) -> float:
    """Return what the rounds of the last 24 hours cost."""
    return sum(each.cost_usd for each in history if each.at > now - 86_400)
