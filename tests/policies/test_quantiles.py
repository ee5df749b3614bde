"""Quantiles: accuracy, forgetting, and samples that were cut short."""

from __future__ import annotations

import math
import random

import pytest

from headstart.policies.routing.measures import (
    LATE,
    LONGEST_S,
    SHORTEST_S,
    DecayingRatio,
    PeakEWMA,
    Quantiles,
    SavedHistogram,
)

HALF_LIFE_S = 600.0


def lognormal(noise: random.Random, median: float = 0.5, sigma: float = 0.6) -> float:
    return median * math.exp(sigma * noise.gauss(0, 1))


def truth(share: float, median: float = 0.5, sigma: float = 0.6) -> float:
    z = {0.5: 0.0, 0.9: 1.2816, 0.95: 1.6449, 0.99: 2.3263}[share]
    return median * math.exp(sigma * z)


def test_without_samples_nothing_is_known() -> None:
    empty = Quantiles(HALF_LIFE_S)
    assert empty.quantile(0.5) is None
    assert empty.mean() is None
    assert empty.late() == ()
    assert empty.weight(0.0) == 0.0


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.4, 3.0, 45.0, 599.0])
def test_one_sample_is_every_quantile_within_a_bin(seconds: float) -> None:
    sketch = Quantiles(HALF_LIFE_S)
    sketch.add(seconds, 0.0)
    for share in (0.01, 0.5, 0.99):
        assert sketch.quantile(share) == pytest.approx(seconds, rel=0.051)
    assert sketch.mean() == pytest.approx(seconds, rel=0.026)


@pytest.mark.parametrize(("seconds", "kept"), [(0.0, SHORTEST_S), (1e9, LONGEST_S)])
def test_samples_out_of_range_count_at_its_ends(seconds: float, kept: float) -> None:
    sketch = Quantiles(HALF_LIFE_S)
    sketch.add(seconds, 0.0)
    assert sketch.quantile(0.5) == pytest.approx(kept, rel=0.06)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
def test_quantiles_of_many_samples_are_close_to_the_truth(share: float) -> None:
    noise, sketch = random.Random(1), Quantiles(1e9)
    for number in range(20_000):
        sketch.add(lognormal(noise), number)
    assert sketch.quantile(share) == pytest.approx(truth(share), rel=0.04)


def test_late_tells_what_its_shares_of_the_samples_exceed() -> None:
    sketch = Quantiles(1e9)
    for number in range(1000):
        sketch.add(1 + number / 100, number)
    assert sketch.late() == tuple(sketch.quantile(1 - share) for share in LATE)
    assert list(sketch.late()) == sorted(sketch.late())
    for number in range(1000):
        sketch.add(50 + number / 100, number)
    assert sketch.late() == tuple(sketch.quantile(1 - share) for share in LATE)


def test_old_samples_fade_and_new_ones_take_over() -> None:
    sketch = Quantiles(HALF_LIFE_S)
    for number in range(1000):
        sketch.add(0.2, number * 0.1)
    for number in range(1000):
        sketch.add(2.0, 4000.0 + number * 0.1)
    assert sketch.quantile(0.05) == pytest.approx(2.0, rel=0.05)


def test_weight_halves_in_a_half_life() -> None:
    sketch = Quantiles(HALF_LIFE_S)
    for _ in range(40):
        sketch.add(1.0, 100.0)
    assert sketch.weight(100.0) == pytest.approx(40.0)
    assert sketch.weight(100.0 + HALF_LIFE_S) == pytest.approx(20.0)


def test_weights_stay_finite_over_years() -> None:
    sketch = Quantiles(1.0)
    for year in range(5):
        sketch.add(0.5, year * 3.15e7)
    assert sketch.weight(4 * 3.15e7) == pytest.approx(1.0)
    assert sketch.quantile(0.5) == pytest.approx(0.5, rel=0.05)


def test_the_mean_is_moved_little_by_one_stall_and_fully_by_many() -> None:
    steady, stalled = Quantiles(1e9), Quantiles(1e9)
    for number in range(60):
        steady.add(0.5, number)
        stalled.add(0.5, number)
    steady.add(20.0, 60)
    for number in range(60):
        stalled.add(20.0, 60 + number)
    assert steady.mean() == pytest.approx(0.5, rel=0.05)
    assert stalled.mean() == pytest.approx(10.25, rel=0.05)


@pytest.mark.parametrize("cut_s", [0.6, 0.9])
def test_cutting_the_slow_samples_short_does_not_make_the_rest_look_fast(cut_s: float) -> None:
    noise, aware, ignorant = random.Random(2), Quantiles(1e9), Quantiles(1e9)
    for number in range(20_000):
        seconds, cut = lognormal(noise), cut_s + lognormal(noise)
        aware.add(min(seconds, cut), number, censored=cut < seconds)
        if seconds <= cut:
            ignorant.add(seconds, number)
    assert aware.quantile(0.95) == pytest.approx(truth(0.95), rel=0.05)
    assert (ignorant.quantile(0.95) or 0.0) < 0.97 * truth(0.95)


def test_samples_that_were_all_cut_short_are_at_least_that_long() -> None:
    sketch = Quantiles(HALF_LIFE_S)
    for number in range(10):
        sketch.add(3.0, number, censored=True)
    assert sketch.quantile(0.5) == pytest.approx(3.0, rel=0.06)


def test_saved_bins_hold_the_same_curve() -> None:
    noise, sketch, loaded = random.Random(3), Quantiles(HALF_LIFE_S), Quantiles(HALF_LIFE_S)
    for number in range(500):
        sketch.add(lognormal(noise), number, censored=number % 7 == 0)
    loaded.load(sketch.saved(900.0), 5.0)
    assert loaded.quantile(0.95) == pytest.approx(sketch.quantile(0.95))
    assert loaded.weight(5.0) == pytest.approx(sketch.weight(900.0))


def test_bins_of_another_histogram_are_refused() -> None:
    with pytest.raises(ValueError, match="does not have"):
        Quantiles(HALF_LIFE_S).load(SavedHistogram([10_000], [1.0], [0.0]), 0.0)


def test_a_ratio_weighs_by_size_and_forgets() -> None:
    ratio = DecayingRatio(10.0)
    assert ratio.value is None
    ratio.add(10, 1.0, 0.0)
    ratio.add(900, 9.0, 0.0)
    assert ratio.value == pytest.approx(91.0)
    ratio.add(10, 1.0, 1000.0)
    assert ratio.value == pytest.approx(10.0)


def test_a_peak_rises_at_the_third_slow_call_and_sinks_with_its_time_constant() -> None:
    peak = PeakEWMA()
    peak.add(20.0, slow=True, now=0.0)
    peak.add(9.0, slow=True, now=0.0)
    assert peak.value(0.0) == 1.0
    peak.add(5.0, slow=True, now=1.0)
    assert peak.value(1.0) == 5.0
    assert peak.value(1.0 + PeakEWMA.TAU_S) == pytest.approx(1 + 4 / math.e)


def test_a_single_stall_between_usual_calls_is_no_peak() -> None:
    peak = PeakEWMA()
    for now, (times, slow) in enumerate([(1.0, False), (40.0, True), (0.9, False), (40.0, True)]):
        peak.add(times, slow=slow, now=float(now))
    assert peak.value(3.0) == 1.0
