"""The threshold curve: an upper bound of the error at every score."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.policies.learned_rule.error_limit import EXACT_JUDGE, JudgeNoise
from headstart.policies.learned_rule.threshold import ErrorCurve, draw_curve

NOISY = JudgeNoise(false_disagree=0.1, false_agree=0.2, unsure_same=0.0, unsure_different=0.0)
UNSURE = JudgeNoise(false_disagree=0.02, false_agree=0.15, unsure_same=0.1, unsure_different=0.4)


def drawn(seed: int, count: int, noise: JudgeNoise = EXACT_JUDGE) -> tuple[ErrorCurve, float]:
    """Return the curve of candidates whose errors end at a score of 1, and their true error."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-2, 4, count)
    truth = (scores > 1) | (rng.random(count) < 0.5)
    unsure = np.where(truth, noise.unsure_same, noise.unsure_different)
    flips = np.where(truth, noise.false_disagree, noise.false_agree)
    sure = rng.random(count) >= unsure
    judged = np.where(rng.random(count) < flips, ~truth, truth)[sure]
    curve = draw_curve(scores[sure], judged, np.ones(sure.sum()), np.full(sure.sum(), 0.2), noise)
    return curve, float(1 - truth.mean())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(40, 600))
def test_error_rises_and_share_grows_as_the_cut_falls(seed: int, count: int) -> None:
    curve, _ = drawn(seed, count)
    assert (np.diff(curve.cuts) <= 0).all()
    assert (np.diff(curve.errors) >= -1e-12).all()
    assert (np.diff(curve.served) > 0).all()
    assert curve.served[-1] == pytest.approx(1.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_a_stricter_target_or_a_wider_margin_never_serves_more(seed: int) -> None:
    curve, _ = drawn(seed, 1500)
    for strict, lax in ((0.02, 0.05), (0.05, 0.1)):
        for of in (curve.threshold, curve.threshold_of_requests):
            low, high = of(lax, 1.0), of(strict, 1.0)
            assert high is None or (low is not None and low <= high)
            wide = of(lax, 1.64)
            assert wide is None or (low is not None and low <= wide)


def test_the_threshold_finds_where_errors_begin() -> None:
    threshold = drawn(1, 2000)[0].threshold(0.05, 1.0)
    assert threshold is not None
    assert 0.3 < threshold < 1.3


@pytest.mark.parametrize("noise", [NOISY, UNSURE])
def test_the_judges_noise_is_taken_off(noise: JudgeNoise) -> None:
    curve, true_error = drawn(3, 20_000, noise)
    assert curve.errors[-1] == pytest.approx(true_error, abs=0.03)
    assert curve.errors[len(curve.cuts) // 4] < 0.03


def test_an_error_a_request_allows_more_than_one_a_hit() -> None:
    curve, _ = drawn(5, 2000)
    of_hits, of_requests = curve.threshold(0.05, 1.0), curve.threshold_of_requests(0.05, 1.0)
    assert of_hits is not None
    assert of_requests is not None
    assert of_requests <= of_hits


def test_few_candidates_draw_no_cut() -> None:
    assert drawn(1, 30)[0].threshold(0.5, 0.0) is None


def test_the_curve_does_not_depend_on_the_order_of_candidates() -> None:
    rng = np.random.default_rng(2)
    scores, same, mass = rng.normal(size=300), rng.random(300) < 0.8, rng.uniform(1, 9, 300)
    risks = np.full(300, 0.2)
    mixed = rng.permutation(300)
    one = draw_curve(scores, same, mass, risks, EXACT_JUDGE)
    other = draw_curve(scores[mixed], same[mixed], mass[mixed], risks, EXACT_JUDGE)
    assert np.allclose(one.errors, other.errors)
