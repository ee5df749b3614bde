"""Shares with their intervals."""

from __future__ import annotations

from math import exp, lgamma, log, sqrt
from typing import NamedTuple

import numpy as np

_Z = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""
_STEPS = 50
"""Halvings of the interval in which the exact bound lies."""


class Interval(NamedTuple):
    """A two-sided 95 % Wilson score interval (Wilson 1927)."""

    low: float
    high: float


def wilson_interval(count: float, of: float) -> Interval | None:
    """Return the 95 % interval of the share ``count / of``; None when ``of`` is 0."""
    if not of:
        return None
    share, z2 = count / of, _Z * _Z
    middle = share + z2 / (2 * of)
    spread = _Z * sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    scale = 1 + z2 / of
    return Interval(max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def least_share(count: int, of: int, doubt: float = 0.05) -> float:
    """Return the exact one-sided lower bound of a share (Clopper and Pearson 1934).

    A true share below it would give ``count`` or more only with probability ``doubt`` at most.
    """
    if count <= 0:
        return 0.0
    low, high = 0.0, count / of
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _at_least(count, of, middle) > doubt:
            high = middle
        else:
            low = middle
    return low


def _at_least(count: int, of: int, share: float) -> float:
    """Return the probability of ``count`` or more among ``of``."""
    if share <= 0:
        return 0.0
    below = np.arange(count)
    ways = lgamma(of + 1) - _log_factorials(below) - _log_factorials(of - below)
    logs = ways + below * log(share) + (of - below) * log(1 - share)
    peak = float(logs.max())
    return 1.0 - exp(peak) * float(np.exp(logs - peak).sum())


def _log_factorials(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray:
    return np.array([lgamma(number + 1) for number in numbers.tolist()])
