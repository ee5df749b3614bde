"""Intervals of shares, against published and closed-form values."""

from __future__ import annotations

from decimal import Decimal
from math import comb

import pytest

from headstart.report.estimates import least_share, wilson_interval


def test_wilson_interval_agrees_with_published_values() -> None:
    # Brown, Cai and DasGupta 2001 give Wilson's 95 % interval for 10 of 20 as 0.299 to 0.701.
    interval = wilson_interval(10, 20)
    assert interval == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(0, 0) is None


@pytest.mark.parametrize(
    ("count", "of", "bound"), [(0, 100, 0.0), (10, 10, 0.05**0.1), (1, 100, 1 - 0.95**0.01)]
)
def test_least_share_agrees_with_closed_forms(count: int, of: int, bound: float) -> None:
    assert least_share(count, of) == pytest.approx(bound, abs=1e-9)


@pytest.mark.parametrize(("count", "of"), [(5, 100), (60, 3000), (900, 1000)])
def test_at_the_bound_so_many_would_be_seen_once_in_twenty(count: int, of: int) -> None:
    share = Decimal(least_share(count, of))
    below = sum(comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count))
    assert float(1 - below) == pytest.approx(0.05, abs=1e-5)
