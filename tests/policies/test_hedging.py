"""Hedging: when, and never more than the budget."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING

import pytest

from headstart.attempts import RoutingEstimate
from headstart.policies.routing.measures import Measures, UpstreamModel
from headstart.policies.routing.ordering import Availability, CallShape, predict_call
from headstart.policies.routing.schedule import (
    BUDGET_BURST,
    BUDGET_START,
    BUDGET_WINDOW,
    UNKNOWN_DELAY_S,
    ExtraBudget,
    hedge_delay_s,
    hedge_usd,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BODY = (0.4, 0.55, 0.65, 0.75, 0.8, 0.9, 1.1, 1.3)
STALLING = (0.4, 0.55, 0.65, 0.75, 0.9, 7.0, 20.0, 25.0)


def look(late: tuple[float, ...] = BODY, *, samples: int = 100, **more: bool) -> RoutingEstimate:
    return RoutingEstimate(name="a", samples=samples, late_ttft_s=late, **more)


READY = look()


@pytest.mark.parametrize(
    ("extra_calls", "delay_s"), [(0.05, 0.9), (0.1, 0.75), (0.5, 0.4), (0.9, 0.4), (0.001, 1.3)]
)
def test_the_delay_is_the_time_that_as_many_calls_exceed_as_the_budget_allows(
    extra_calls: float, delay_s: float
) -> None:
    assert hedge_delay_s([look(), READY], extra_calls=extra_calls) == pytest.approx(delay_s)


def test_between_known_shares_the_delay_lies_between_their_times() -> None:
    delay_s = hedge_delay_s([look(), READY], extra_calls=0.03)
    assert delay_s is not None
    assert 0.9 < delay_s < 1.1


def test_a_provider_that_stalls_more_often_than_the_budget_is_not_waited_for() -> None:
    assert hedge_delay_s([look(STALLING), READY]) == pytest.approx(3 * 0.55)


def test_the_delay_keeps_its_floor_and_half_of_the_deadline() -> None:
    assert hedge_delay_s([look(), READY], floor_s=1.5) == 1.5
    assert hedge_delay_s([look(), READY], deadline_in_s=1.0) == 0.5
    assert hedge_delay_s([look(), READY], deadline_in_s=-1.0) == 0.0


def test_with_few_samples_the_delay_is_a_default() -> None:
    assert hedge_delay_s([look(samples=5), READY]) == UNKNOWN_DELAY_S
    assert hedge_delay_s([look((), samples=0), READY]) == UNKNOWN_DELAY_S


@pytest.mark.parametrize(
    "looks",
    [
        [READY],
        [READY, look(ready=False)],
        [look(degraded=True), look(degraded=True)],
    ],
)
def test_no_hedge_without_another_upstream_or_while_all_are_degraded(
    looks: list[RoutingEstimate],
) -> None:
    assert hedge_delay_s(looks) is None


def test_one_degraded_provider_is_hedged_by_a_healthy_one() -> None:
    assert hedge_delay_s([look(degraded=True), READY]) is not None


def demand(kind: str, noise: random.Random) -> Callable[[int], bool]:
    return {
        "always": lambda _: True,
        "sometimes": lambda _: noise.random() < 0.06,
        "outages": lambda i: i % 1500 > 1200,
    }[kind]


@pytest.mark.parametrize("share", [0.05, 0.013, 0.5])
@pytest.mark.parametrize("kind", ["always", "sometimes", "outages"])
def test_no_window_holds_more_extra_calls_than_its_budget(kind: str, share: float) -> None:
    budget, wanted, extra = ExtraBudget(share, 1.0), demand(kind, random.Random(4)), []
    for number in range(6000):
        budget.earn(0.0)
        spent = 0
        while wanted(number) and budget.spend(0.0):
            spent += 1
        extra.append(spent)
    run = list(itertools.accumulate(extra, initial=0))
    for size in (1, 10, 100, BUDGET_WINDOW):
        most = max(run[i] - run[i - size] for i in range(size, len(run)))
        assert most <= min(share * size + BUDGET_BURST, share * BUDGET_WINDOW) + 1e-6
    start = min(BUDGET_START, share * BUDGET_WINDOW)
    assert all(
        total <= max(start, share * count) + 1e-6
        for count, total in enumerate(run[: BUDGET_WINDOW + 1])
    )
    assert run[-1] > 0


def test_extra_dollars_stay_within_their_share_of_what_requests_cost() -> None:
    noise, budget, earned, wasted = random.Random(5), ExtraBudget(1.0, 0.05), 0.0, 0.0
    for _ in range(900):
        cost = noise.expovariate(100.0)
        budget.earn(cost)
        earned += cost
        if budget.spend(cost / 3):
            wasted += cost / 3
    assert 0.04 < wasted / earned <= 0.05
    assert budget.usd_used == pytest.approx(wasted / earned)


@pytest.mark.parametrize(
    ("costs", "wastes", "earned", "wasted"),
    [
        ((1.0, 3.0), (0.1, 0.2), 1.0, 0.2),
        ((3.0, 1.0), (0.2, 0.1), 3.0, 0.2),
        ((0.0, 3.0), (0.0, 0.2), 3.0, 0.2),
        ((0.0, 0.0), (0.0, 0.0), 0.0, 0.0),
        ((None, 3.0), (None, 0.2), 0.0, 0.0),
        ((3.0, None), (0.2, None), 0.0, 0.0),
    ],
    ids=["cheap first", "dear first", "free first", "all free", "first unknown", "second unknown"],
)
def test_a_hedge_wastes_the_dearer_of_two_and_nothing_where_a_price_is_unknown(
    costs: tuple[float | None, ...],
    wastes: tuple[float | None, ...],
    earned: float,
    wasted: float,
) -> None:
    first, second = (
        RoutingEstimate(name="a", cost_usd=cost, waste_usd=waste)
        for cost, waste in zip(costs, wastes, strict=True)
    )
    assert hedge_usd(first, second) == (earned, wasted)


@pytest.mark.parametrize(
    ("share", "start"), [(0.05, 3), (0.5, 3), (0.003, 3), (0.001, 1), (0.0005, 0), (0.0, 0)]
)
def test_the_first_calls_may_be_hedged_within_what_a_thousand_allow(
    share: float, start: int
) -> None:
    budget = ExtraBudget(share, 1.0)
    spent = [0, 0, 0, 0, 0]
    for number in range(5):
        budget.earn(0.0)
        spent[number] = budget.spend(0.0)
    assert sum(spent) == start
    assert all(spent[:start])


@pytest.mark.parametrize(
    ("share", "wastes", "spent"),
    [
        (0.05, [1.0, 1.0, 1.0, 1.0], [True, True, True, False]),
        (0.05, [2.0, 2.0, 1.0], [True, False, True]),
        (0.05, [4.0, 0.1], [False, True]),
        (0.001, [1.0, 0.1], [True, False]),
        (0.0, [0.1, 0.1], [False, False]),
    ],
)
def test_the_first_hedges_may_waste_what_three_requests_cost(
    share: float, wastes: list[float], spent: list[bool]
) -> None:
    budget, found = ExtraBudget(0.05, share), []
    for waste in wastes:
        budget.earn(1.0)
        found.append(budget.spend(waste))
    assert found == spent


def test_spending_of_long_ago_no_longer_counts() -> None:
    budget = ExtraBudget(0.05, 0.05)
    assert not budget.spend(0.0)
    for _ in range(40):
        budget.earn(1.0)
    assert budget.spend(1.0)
    assert budget.calls_used == pytest.approx(1 / 40)
    for _ in range(BUDGET_WINDOW):
        budget.earn(1.0)
    assert budget.calls_used == budget.usd_used == 0.0


def hedge_rate(*, learn_censored: bool) -> float:
    """Return how often hedging by learned p95s fires when losers are cancelled."""
    noise, measures = random.Random(6), Measures()
    keys = [UpstreamModel("a", "m"), UpstreamModel("b", "m")]
    fired, calls = 0, 6000
    for number in range(calls):
        now = number * 0.1
        looks = [
            predict_call(k.upstream, k, CallShape(100), Availability(), measures, now) for k in keys
        ]
        delay_s = hedge_delay_s(looks)
        assert delay_s is not None
        one_s, other_s = (0.4 * math.exp(0.5 * noise.gauss(0, 1)) for _ in keys)
        if number % 20 == 0:
            one_s += 10.0
        over_s = min(one_s, delay_s + other_s) if one_s > delay_s else one_s
        fired += one_s > delay_s
        if over_s == one_s:
            measures.first(keys[0], 100, over_s, now)
        elif learn_censored:
            measures.censored(keys[0], 100, over_s, now)
    return fired / calls


def test_the_hedge_rate_stays_on_target_while_losers_are_cut_short() -> None:
    """With stalls in 5 % of the calls, 5 % extra calls are just those: none of the body."""
    assert hedge_rate(learn_censored=True) == pytest.approx(0.053, abs=0.006)


def test_forgetting_those_who_lost_would_drive_more_hedges() -> None:
    assert hedge_rate(learn_censored=False) > 0.08
