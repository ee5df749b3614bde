"""Quantiles and confidence intervals over plain sequences of numbers."""

from __future__ import annotations

from math import exp, fsum, lgamma, log, sqrt
from statistics import NormalDist, fmean, variance
from typing import TYPE_CHECKING, NamedTuple

from headstart.report.values import Interval, LatencyQuantiles, Point

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_SAMPLE = 5
"""A smaller sample gets no interval: it would tell more about the formula than about the data."""
CURVE_POINTS = 200
_Z = NormalDist().inv_cdf(0.975)
"""The two-sided 95 % quantile of the normal distribution."""
_DOUBT = 0.05
_STEPS = 50
"""Halvings of the range in which the exact bound lies."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of a sorted sequence with a value, with linear interpolation."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def quantiles(values: Sequence[float]) -> LatencyQuantiles | None:
    """Return p50, p95 and p99, or None without values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95, p99 = (quantile(ordered, share) for share in (0.50, 0.95, 0.99))
    return LatencyQuantiles(n=len(ordered), p50_s=p50, p95_s=p95, p99_s=p99)


def curve(values: Sequence[float]) -> tuple[Point, ...]:
    """Return the distribution at ``CURVE_POINTS`` points or fewer."""
    ordered = sorted(values)
    steps = min(len(ordered), CURVE_POINTS)
    return tuple(
        Point(seconds=ordered[(i * len(ordered)) // steps - 1], share=i / steps)
        for i in range(1, steps + 1)
    )


def difference_interval(left: Sequence[float], right: Sequence[float]) -> Interval | None:
    """Return mean(left) - mean(right) with Welch's interval."""
    if not left or not right:
        return None
    difference = fmean(left) - fmean(right)
    if min(len(left), len(right)) < MIN_SAMPLE:
        return Interval(value=difference)
    a, b = variance(left) / len(left), variance(right) / len(right)
    half = 0.0
    if a + b > 0:
        freedom = (a + b) ** 2 / (a**2 / (len(left) - 1) + b**2 / (len(right) - 1))
        half = student_t(freedom) * sqrt(a + b)
    return Interval(value=difference, low=difference - half, high=difference + half)


def student_t(freedom: float) -> float:
    """Return Student's t at 97.5 % by Cornish-Fisher (Abramowitz and Stegun 26.7.5).

    It differs from the tables by less than 0.3 % from 4 degrees of freedom on.
    """
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


class ShareInterval(NamedTuple):
    """A two-sided 95 % interval of a share."""

    low: float
    high: float


def wilson_interval(count: float, of: float) -> ShareInterval | None:
    """Return the 95 % score interval of the share ``count / of`` (Wilson 1927).

    None when ``of`` is 0.
    """
    if not of:
        return None
    share, z2 = count / of, _Z * _Z
    middle = share + z2 / (2 * of)
    spread = _Z * sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    scale = 1 + z2 / of
    return ShareInterval(max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def least_share(count: int, of: int) -> float:
    """Return the exact one-sided lower bound of a share (Clopper and Pearson 1934).

    A true share below the bound would give ``count`` or more with a probability of at most 5 %.
    """
    if count <= 0:
        return 0.0
    low, high = 0.0, count / of
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _at_least(count, of, middle) > _DOUBT:
            high = middle
        else:
            low = middle
    return low


def _at_least(count: int, of: int, share: float) -> float:
    """Return the probability of ``count`` or more among ``of``."""
    if share <= 0:
        return 0.0
    logs = [
        lgamma(of + 1) - lgamma(below + 1) - lgamma(of - below + 1)
        + below * log(share) + (of - below) * log(1 - share)
        for below in range(count)
    ]  # fmt: skip
    peak = max(logs)
    return 1.0 - exp(peak) * fsum(exp(each - peak) for each in logs)
