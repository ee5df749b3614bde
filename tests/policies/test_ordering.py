"""Orders of candidates: as given, by speed, by cost."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import pytest

from headstart.attempts import RoutingEstimate
from headstart.policies.routing.ordering import EXPLORE, as_given, by_cost, by_speed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Order(Protocol):
    def __call__(
        self, estimates: Sequence[RoutingEstimate], *, draw: Callable[[], float]
    ) -> tuple[int, ...]: ...


def look(
    ttft_s: float | None = 0.3,
    tokens_per_s: float | None = 50.0,
    *,
    output_tokens: float = 100.0,
    samples: int = 50,
    ready: bool = True,
    ready_in_s: float = 0.0,
    degraded: bool = False,
    weight: float = 1.0,
    cost_usd: float | None = 0.01,
    warm: bool = False,
    warm_s: float = 0.0,
) -> RoutingEstimate:
    return RoutingEstimate(
        name="x",
        ready=ready,
        ready_in_s=ready_in_s,
        degraded=degraded,
        weight=weight,
        samples=samples,
        ttft_s=ttft_s,
        tokens_per_s=tokens_per_s,
        output_tokens=output_tokens,
        cost_usd=cost_usd,
        warm=warm,
        warm_s=warm_s,
    )


def closed(ready_in_s: float) -> RoutingEstimate:
    return look(ready=False, ready_in_s=ready_in_s)


def never() -> float:
    """Draw so that nothing is explored."""
    return 0.999


def test_the_given_order_holds_for_the_ready_and_the_rest_follows_by_time() -> None:
    looks = [closed(9.0), look(2.0), closed(1.0), look(1.0)]
    assert as_given(looks, draw=never) == (1, 3, 2, 0)


def test_a_conversation_stays_in_spite_of_the_order_where_it_is_sticky() -> None:
    looks = [look(), look(warm=True), look()]
    assert as_given(looks, draw=never, sticky=True) == (1, 0, 2)
    assert as_given(looks, draw=never) == (0, 1, 2)
    doubtful = [look(), look(warm=True, degraded=True), look(warm=True, ready=False, ready_in_s=1)]
    assert as_given(doubtful, draw=never, sticky=True) == (0, 1, 2)


@pytest.mark.parametrize("order", [as_given, by_speed, by_cost])
def test_who_comes_back_after_an_outage_gets_its_share_of_the_calls(order: Order) -> None:
    looks = [look(0.1, cost_usd=0.001, weight=0.3), look(), closed(1.0)]
    draws = random.Random(6).random
    orders = Counter(order(looks, draw=draws) for _ in range(4000))
    assert orders.keys() == {(0, 1, 2), (1, 0, 2)}
    assert orders[0, 1, 2] / 4000 == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize(("tokens", "first"), [(10.0, 0), (1000.0, 1)])
def test_short_and_long_answers_choose_different_providers(tokens: float, first: int) -> None:
    looks = [look(0.1, 40.0, output_tokens=tokens), look(0.8, 300.0, output_tokens=tokens)]
    assert by_speed(looks, draw=never)[0] == first


def test_degraded_then_dear_then_closed_candidates_come_last() -> None:
    looks = [
        closed(5.0),
        closed(1.0),
        look(0.1, cost_usd=0.5),
        look(0.1, cost_usd=None),
        look(0.2, degraded=True),
        look(3.0),
    ]
    assert by_speed(looks, draw=never, max_usd=0.1) == (5, 4, 2, 3, 1, 0)


def test_a_conversation_stays_unless_another_gains_more_than_its_prefill() -> None:
    other = look(0.5)
    assert by_speed([other, look(1.4, warm=True, warm_s=1.0)], draw=never)[0] == 1
    assert by_speed([other, look(2.0, warm=True, warm_s=1.0)], draw=never)[0] == 0


def test_a_conversation_stays_among_near_equals() -> None:
    looks = [look(0.50), look(0.52, warm=True), look(0.51)]
    draws = random.Random(1).random
    assert {by_speed(looks, draw=draws)[0] for _ in range(50)} == {1}


def test_near_equals_share_the_calls_and_the_better_one_gets_more() -> None:
    looks = [look(0.50), look(0.51), look(0.52), look(9.0)]
    draws = random.Random(2).random
    firsts = Counter(by_speed(looks, draw=draws)[0] for _ in range(3000))
    assert firsts[3] == firsts[2] == 0  # the worst of the near never wins a draw of two
    assert firsts[0] > firsts[1] > 500


def test_who_has_few_samples_is_measured_now_and_then() -> None:
    looks = [look(0.2), look(None, None, samples=0)]
    draws = random.Random(3).random
    firsts = Counter(by_speed(looks, draw=draws)[0] for _ in range(4000))
    assert firsts[1] / 4000 == pytest.approx(EXPLORE, abs=0.02)


def test_while_nobody_is_measured_all_are_tried() -> None:
    looks = [look(None, None, samples=0)] * 3
    draws = random.Random(4).random
    assert {by_speed(looks, draw=draws)[0] for _ in range(60)} == {0, 1, 2}


def test_no_conversation_is_moved_to_measure_another() -> None:
    looks = [look(0.2, warm=True), look(None, None, samples=0)]
    draws = random.Random(5).random
    assert {by_speed(looks, draw=draws)[0] for _ in range(200)} == {0}


def test_the_cheapest_that_is_quick_enough_comes_first_and_the_slow_by_speed() -> None:
    looks = [
        look(9.0, cost_usd=0.001),
        look(0.5, cost_usd=0.02),
        look(1.0, cost_usd=0.01),
        look(6.0, cost_usd=0.0001),
    ]
    assert by_cost(looks, draw=never, within_s=4.0) == (2, 1, 3, 0)
    assert by_cost(looks, draw=never) == (3, 0, 2, 1)


def test_unknown_prices_come_last_and_equal_ones_by_speed() -> None:
    looks = [look(0.1, cost_usd=None), look(2.0), look(1.0)]
    assert by_cost(looks, draw=never) == (2, 1, 0)


def test_by_cost_measures_only_where_time_matters() -> None:
    looks = [look(0.2), look(None, None, samples=0)]
    assert by_cost(looks, draw=lambda: 0.0, within_s=5.0)[0] == 1
    assert by_cost(looks, draw=lambda: 0.0)[0] == 0


def test_one_or_no_candidate_needs_no_choice() -> None:
    assert by_speed([], draw=never) == by_cost([], draw=never) == as_given([], draw=never) == ()
    assert by_speed([closed(1.0)], draw=never) == (0,)
