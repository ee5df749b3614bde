"""How often cascades check drafts, at which price of the strong model."""

from __future__ import annotations

import random

import pytest

from headstart.policies.drafts import CHECKED, LEAST_CHECKED, Escalations, check_share

CALLS = 100_000


def _run(ratio: float, escalated: float, draft_usd: float = 1.0) -> tuple[float, float]:
    """Return which share of many calls was checked, and what that cost as a share of the rest."""
    chance, known = random.Random(7), Escalations()
    slow_usd = ratio * (draft_usd or 1.0)
    checks, route_usd = 0, 0.0
    for _ in range(CALLS):
        fails = chance.random() < escalated
        route_usd += draft_usd + fails * slow_usd
        mean_usd = draft_usd + known.share * slow_usd
        share = check_share(mean_usd, slow_usd, checked=CHECKED, extra_cost=0.05)
        if chance.random() < share:
            checks += 1
        else:
            known = known.after(escalated=fails)
    return checks / CALLS, checks * slow_usd / route_usd if route_usd else 0.0


@pytest.mark.parametrize("escalated", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("ratio", [1.0, 5.0, 25.0, 60.0])
def test_the_documented_share_is_reached_at_every_price(ratio: float, escalated: float) -> None:
    found, cost = _run(ratio, escalated)
    stated = max(LEAST_CHECKED, min(CHECKED, 0.05 * (1 / ratio + escalated)))
    assert found == pytest.approx(stated, rel=0.25)
    least = LEAST_CHECKED * ratio
    assert cost <= max(0.05, least) * 1.25


def test_a_free_draft_that_always_passes_is_checked_all_the_same() -> None:
    found, _ = _run(ratio=1.0, escalated=0.0, draft_usd=0.0)
    assert found == pytest.approx(LEAST_CHECKED, rel=0.25)


def test_a_check_that_costs_nothing_is_made_as_often_as_wanted() -> None:
    assert check_share(0.0, 0.0, checked=0.01, extra_cost=0.0) == 0.01


@pytest.mark.parametrize(("checked", "extra_cost"), [(0.0, 0.05), (0.02, 0.0)])
def test_a_share_of_nothing_turns_checks_off(checked: float, extra_cost: float) -> None:
    assert check_share(1.0, 30.0, checked=checked, extra_cost=extra_cost) == 0.0


def test_escalations_follow_what_happens_of_late() -> None:
    known = Escalations()
    for number in range(4000):
        known = known.after(escalated=number % 2 == 0)
    assert known.share == pytest.approx(0.5, abs=0.01)
    for _ in range(5000):
        known = known.after(escalated=False)
    assert known.share < 0.01
