"""Quantiles and intervals against tables, simulation and edge cases."""

from __future__ import annotations

import random

import pytest

from headstart.report.estimates import (
    curve,
    difference_interval,
    quantile,
    quantiles,
    student_t,
)


@pytest.mark.parametrize(
    ("freedom", "tabled"),
    [(4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (100, 1.984), (1e9, 1.960)],
)
def test_student_t_matches_the_tables(freedom: float, tabled: float) -> None:
    assert student_t(freedom) == pytest.approx(tabled, rel=0.003)


def test_quantile_interpolates_between_ranks() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([7.0], 0.99) == 7.0


def test_no_values_have_no_quantiles_curve_or_interval() -> None:
    assert quantiles([]) is None
    assert curve([]) == ()
    assert difference_interval([], [1.0]) is None


def test_small_sample_has_a_mean_and_no_bounds() -> None:
    interval = difference_interval([1.0, 2.0, 3.0, 4.0], [0.0] * 9)
    assert interval is not None
    assert (interval.value, interval.low, interval.high) == (2.5, None, None)


def test_equal_values_have_an_interval_of_no_width() -> None:
    interval = difference_interval([3.0] * 6, [1.0] * 6)
    assert interval is not None
    assert (interval.low, interval.value, interval.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("sizes", [(6, 6), (8, 60)])
def test_welch_interval_covers_the_true_difference_19_times_in_20(sizes: tuple[int, int]) -> None:
    draw = random.Random(7)
    runs = 2000
    covered = 0
    for _ in range(runs):
        left = [draw.gauss(5.0, 3.0) for _ in range(sizes[0])]
        right = [draw.gauss(4.0, 1.0) for _ in range(sizes[1])]
        interval = difference_interval(left, right)
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 1.0 <= interval.high
    assert covered / runs == pytest.approx(0.95, abs=0.02)
