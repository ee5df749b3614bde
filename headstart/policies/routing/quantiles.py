"""Quantiles of durations, online, in constant memory, forgetting with time.

A histogram whose bins grow by 5 % (DDSketch: Masson, Rim and Lee, VLDB 2019) from 1 ms to 10
minutes: a quantile is off by 2.5 % at most, and by less where its bin is interpolated. Old samples
fade by forward decay (Cormode, Shkapenyuk, Srivastava and Xu, ICDE 2009): a new sample weighs
more, instead of each old one less. A call that was cancelled while it waited is a censored sample:
it would have taken at least that long. The curve is the life-table form of Kaplan and Meier's
estimator (Cutler and Ederer, 1958) and ends as Efron's does (1967): what is known of the last bin
only from below lies in it.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left

import msgspec

GROWTH = 1.05
SHORTEST_S = 0.001
LONGEST_S = 600.0
_SCALE = 1 / math.log(GROWTH)
BINS = math.ceil(math.log(LONGEST_S / SHORTEST_S) * _SCALE)
LATE = (0.5, 0.25, 0.15, 0.1, 0.075, 0.05, 0.02, 0.01)
"""Shares of the samples that ``Quantiles.late`` tells what they exceed."""
_REBASE = 64.0
"""Half-lives after which weights are brought back to the size of one."""
_STALE = 0.02
"""Share of new weight for which the curve is drawn anew."""


class Bins(msgspec.Struct, array_like=True):
    """A histogram as it is saved: bins that hold something, their samples and censored samples."""

    places: list[int]
    seen: list[float]
    censored: list[float]


class Quantiles:
    """Quantiles of a stream of seconds.

    ``at`` is a clock that does not run backwards, in the unit of ``half_life``: seconds, or a
    count of samples.
    """

    __slots__ = (
        "_added",
        "_base",
        "_censored",
        "_curve",
        "_first",
        "_half_life",
        "_late",
        "_mean",
        "_seen",
        "_total",
        "_unit",
    )

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._seen = array("d", bytes(8 * BINS))
        self._censored: array[float] | None = None  # most never have one
        self._base = 0.0
        self._total = 0.0
        self._added = 0.0
        self._unit = 1.0
        """What the newest sample weighs."""
        self._first = 0
        self._curve: list[float] = []
        """Share of the samples in the bins up to this one, from ``_first`` on."""
        self._mean = 0.0
        self._late: tuple[float, ...] = ()

    def add(self, seconds: float, at: float, *, censored: bool = False) -> None:
        """Learn a duration; ``censored``: it was cut short, and would have been at least this."""
        age = (at - self._base) / self._half_life
        if age > _REBASE or self._total == 0.0:
            self._rebase(at)
            age = 0.0
        weight = self._unit = math.exp2(age)
        place = int(math.log(max(seconds, SHORTEST_S) / SHORTEST_S) * _SCALE)
        bins = self._seen
        if censored:
            bins = self._censored = self._censored or array("d", bytes(8 * BINS))
        bins[min(place, BINS - 1)] += weight
        self._total += weight
        self._added += weight

    def weight(self, at: float) -> float:
        """Return how many samples it rests on; those of a half-life ago count half."""
        if self._total == 0.0:
            return 0.0
        return self._total * math.exp2((self._base - at) / self._half_life)

    def quantile(self, share: float) -> float | None:
        """Return the seconds that ``share`` of the samples do not exceed; None without samples."""
        return self._at(share) if self._drawn() else None

    def late(self) -> tuple[float, ...]:
        """Return the seconds that the shares in ``LATE`` exceed; empty without samples."""
        return self._late if self._drawn() else ()

    def mean(self) -> float | None:
        """Return the mean, winsorised so that two samples cannot move it; None without samples."""
        return self._mean if self._drawn() else None

    def saved(self, at: float) -> Bins:
        """Return its bins, weighed as of ``at``."""
        scale = math.exp2((self._base - at) / self._half_life)
        censored = self._censored or array("d", bytes(8 * BINS))
        places = [i for i in range(BINS) if (self._seen[i] + censored[i]) * scale > 1e-6]
        return Bins(
            places,
            [self._seen[place] * scale for place in places],
            [censored[place] * scale for place in places],
        )

    def load(self, bins: Bins, at: float) -> None:
        """Take saved bins over, as if the samples had come at ``at``. Raises ValueError."""
        if any(not 0 <= place < BINS for place in bins.places):
            raise ValueError("a bin that this histogram does not have")
        self._seen, self._censored = array("d", bytes(8 * BINS)), array("d", bytes(8 * BINS))
        for place, seen, censored in zip(bins.places, bins.seen, bins.censored, strict=True):
            self._seen[place], self._censored[place] = seen, censored
        self._base, self._unit = at, 1.0
        self._total = self._added = sum(bins.seen) + sum(bins.censored)

    def _rebase(self, at: float) -> None:
        scale = math.exp2((self._base - at) / self._half_life) if self._total else 0.0
        self._seen = array("d", (weight * scale for weight in self._seen))
        if self._censored is not None:
            self._censored = array("d", (weight * scale for weight in self._censored))
        self._total *= scale
        self._added *= scale
        self._base, self._unit = at, 1.0

    def _at(self, share: float) -> float:
        curve = self._curve
        place = min(bisect_left(curve, share), len(curve) - 1)
        below = curve[place - 1] if place else 0.0
        step = curve[place] - below
        inside = min(1.0, (share - below) / step) if step > 0.0 else 1.0
        return SHORTEST_S * math.exp((self._first + place + inside) / _SCALE)

    def _drawn(self) -> list[float]:
        if self._added > _STALE * self._total:
            self._draw()
        return self._curve

    def _draw(self) -> None:
        self._added = 0.0
        seen, censored = self._seen, self._censored
        self._curve, surviving, at_risk = [], 1.0, self._total
        for place in range(BINS):
            died = seen[place]
            lost = censored[place] if censored is not None else 0.0
            if not self._curve:
                if not died and not lost:
                    continue
                self._first = place
            if died:
                surviving *= max(0.0, 1.0 - died / max(at_risk - lost / 2, died))
            at_risk -= died + lost
            self._curve.append(1.0 - surviving)
            if at_risk <= 1e-9 * self._total:
                break
        self._curve[-1] = 1.0
        self._mean = self._winsorised()
        self._late = tuple(self._at(1.0 - share) for share in LATE)

    def _winsorised(self) -> float:
        few = 2.0 * self._unit / self._total
        most = self._at(1.0 - min(0.5, max(0.01, few)))
        total, below = 0.0, 0.0
        for place, share in enumerate(self._curve, self._first):
            total += (share - below) * min(most, SHORTEST_S * math.exp((place + 0.5) / _SCALE))
            below = share
        return total
