"""Quantiles and confidence intervals over plain sequences of numbers."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist, fmean, variance
from typing import TYPE_CHECKING

from headstart.report.values import Interval, Point, Quantiles

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_SAMPLE = 5
"""Below it an interval would say more about the formula than about the data."""
CURVE_POINTS = 200


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of a sorted, non-empty sequence, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """Return p50, p95 and p99, or None without values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95, p99 = (quantile(ordered, share) for share in (0.50, 0.95, 0.99))
    return Quantiles(n=len(ordered), p50_s=p50, p95_s=p95, p99_s=p99)


def curve(values: Sequence[float]) -> tuple[Point, ...]:
    """Return the distribution at no more than ``CURVE_POINTS`` points."""
    ordered = sorted(values)
    steps = min(len(ordered), CURVE_POINTS)
    return tuple(
        Point(seconds=ordered[(i * len(ordered)) // steps - 1], share=i / steps)
        for i in range(1, steps + 1)
    )


def mean_interval(values: Sequence[float], times: float = 1.0) -> Interval | None:
    """Return the mean with its t interval, multiplied by ``times``; None without values."""
    if not values:
        return None
    mean = fmean(values)
    if len(values) < MIN_SAMPLE:
        return Interval(value=mean * times)
    half = student_t(len(values) - 1) * sqrt(variance(values, mean) / len(values))
    return _around(mean, half, times)


def difference_interval(
    left: Sequence[float], right: Sequence[float], times: float = 1.0
) -> Interval | None:
    """Return mean(left) - mean(right) with Welch's interval, multiplied by ``times``."""
    if not left or not right:
        return None
    difference = fmean(left) - fmean(right)
    if min(len(left), len(right)) < MIN_SAMPLE:
        return Interval(value=difference * times)
    a, b = variance(left) / len(left), variance(right) / len(right)
    if a + b == 0:
        return _around(difference, 0.0, times)
    freedom = (a + b) ** 2 / (a**2 / (len(left) - 1) + b**2 / (len(right) - 1))
    return _around(difference, student_t(freedom) * sqrt(a + b), times)


def student_t(freedom: float) -> float:
    """Return Student's t at 97.5 % by Cornish-Fisher (Abramowitz and Stegun 26.7.5).

    Within 0.3 % of the tables from 4 degrees of freedom on.
    """
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def _around(value: float, half: float, times: float) -> Interval:
    return Interval(value=value * times, low=(value - half) * times, high=(value + half) * times)
