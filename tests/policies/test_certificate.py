"""The certificate: a bound that holds at any time, however often one looks."""

from __future__ import annotations

import random

import pytest

from headstart.policies.learned_rule.threshold import audits_needed, upper_bound


@pytest.mark.parametrize(
    ("max_error", "audits"), [(0.005, 1095), (0.01, 473), (0.02, 204), (0.05, 69)]
)
def test_audits_without_error_certify(max_error: float, audits: int) -> None:
    assert audits_needed(0, 0, max_error) == audits
    assert upper_bound(audits, 0) <= max_error < upper_bound(audits - 1, 0)


def test_nothing_is_certified_without_audits() -> None:
    assert upper_bound(0, 0) == 1.0


def test_more_wrong_audits_raise_the_bound_and_more_right_ones_lower_it() -> None:
    assert upper_bound(300, 0) < upper_bound(300, 1) < upper_bound(300, 9)
    assert upper_bound(600, 1) < upper_bound(300, 1)
    assert upper_bound(5, 5) == pytest.approx(1.0)


def test_audits_needed_goes_on_at_the_rate_so_far() -> None:
    more = audits_needed(200, 1, 0.02)
    assert more is not None
    assert 100 < more < 1000
    assert audits_needed(500, 0, 0.01) == 0
    assert audits_needed(100, 5, 0.02) is None


def test_the_bound_holds_at_every_look() -> None:
    random_, missed = random.Random(7), 0
    for _ in range(200):
        wrong = 0
        looks = set()
        for audits in range(1, 401):
            wrong += random_.random() < 0.03
            if audits % 20 == 0:
                looks.add(upper_bound(audits, wrong) < 0.03)
        missed += any(looks)
    assert missed <= 10
