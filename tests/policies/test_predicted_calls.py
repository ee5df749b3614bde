"""Estimates of a call from measurements, price and health, and the upstream of a conversation."""

from __future__ import annotations

import math

import pytest

from headstart.attempts import Tokens
from headstart.policies.cost import Price
from headstart.policies.routing.measures import OUTPUT_TOKENS, Affinities, Measures, UpstreamModel
from headstart.policies.routing.ordering import Availability, CallShape, predict_call

A = UpstreamModel("a", "m")
PRICE = Price(input_per_million=2.0, output_per_million=8.0, cached_per_million=0.2)


def measured() -> Measures:
    measures = Measures()
    for number in range(100):
        measures.first(A, 100, 0.2, number * 0.1)
        measures.first(A, 30_000, 3.0, number * 0.1)
        measures.speed(A, 100, 1.0, number * 0.1)
        measures.length("chat", 50, number * 0.1)
    return measures


def test_an_unmeasured_upstream_has_defaults_and_says_so() -> None:
    look = predict_call("a", A, CallShape(100), Availability(), Measures(), 0.0)
    assert look.samples == 0
    assert look.ttft_s is look.completion_s is look.cost_usd is None
    assert look.output_tokens == OUTPUT_TOKENS
    assert look.ready


def test_completion_is_the_first_token_plus_the_expected_length_over_the_speed() -> None:
    look = predict_call(
        "a", A, CallShape(100, route_or_endpoint="chat"), Availability(), measured(), 10.0
    )
    assert look.completion_s == pytest.approx(0.2 + 0.5, rel=0.05)
    assert look.samples == pytest.approx(100, abs=2)
    assert look.tail_ttft_s == look.late_ttft_s[5]


@pytest.mark.parametrize(
    ("ask", "tokens"),
    [
        (CallShape(route_or_endpoint="chat"), 50),
        (CallShape(route_or_endpoint="chat", output_tokens=400.0), 400),
        (CallShape(route_or_endpoint="chat", output_tokens=400.0, max_tokens=16), 16),
    ],
)
def test_neighbours_tell_the_length_before_the_route_and_a_limit_caps_it(
    ask: CallShape, tokens: float
) -> None:
    look = predict_call("a", A, ask, Availability(), measured(), 10.0)
    assert look.output_tokens == pytest.approx(tokens)


def test_a_warm_prefix_saves_money_and_prefill() -> None:
    ask = CallShape(30_000, output_tokens=100.0)
    cold = predict_call("a", A, ask, Availability(), measured(), 10.0, price=PRICE)
    warm = predict_call(
        "a", A, ask._replace(warm=True), Availability(), measured(), 10.0, price=PRICE
    )
    assert cold.cost_usd == pytest.approx(PRICE.cost_usd(Tokens(30_000, 100)))
    assert warm.cost_usd == pytest.approx((cold.cost_usd or 0.0) - 0.054)
    assert warm.warm_s == pytest.approx(2.8, rel=0.06)
    assert cold.warm_s == 0.0


def test_a_prompt_too_short_to_be_cached_saves_nothing() -> None:
    ask = CallShape(500, output_tokens=100.0, warm=True)
    look = predict_call("a", A, ask, Availability(), measured(), 10.0, price=PRICE)
    assert look.warm
    assert look.warm_s == 0.0
    assert look.cost_usd == pytest.approx(PRICE.cost_usd(Tokens(500, 100)))


@pytest.mark.parametrize(("bills_cancelled", "completion"), [(False, 0), (True, 100)])
def test_a_cancelled_call_wastes_the_prompt_or_the_whole(
    bills_cancelled: bool, completion: int
) -> None:
    standing = Availability(bills_cancelled=bills_cancelled)
    look = predict_call("a", A, CallShape(1000, 100.0), standing, measured(), 10.0, price=PRICE)
    assert look.waste_usd == pytest.approx(PRICE.cost_usd(Tokens(1000, completion)))


@pytest.mark.parametrize(
    ("prompt", "standing", "ready_in_s"),
    [
        (100, Availability(), 0.0),
        (100, Availability(ready_in_s=3.0), 3.0),
        (4400, Availability(context_tokens=4000), 0.0),
        (5000, Availability(context_tokens=4000), math.inf),
    ],
)
def test_a_closed_upstream_or_one_whose_context_is_too_small_is_not_ready(
    prompt: int, standing: Availability, ready_in_s: float
) -> None:
    look = predict_call("a", A, CallShape(prompt), standing, Measures(), 0.0)
    assert (look.ready, look.ready_in_s) == (ready_in_s == 0.0, ready_in_s)


def test_a_conversation_is_remembered_until_its_prefix_is_forgotten() -> None:
    memory = Affinities(ttl_s=300.0)
    memory.served("talk", "a", 0.0)
    memory.served("", "b", 0.0)
    assert memory.of("talk", 299.0) == "a"
    assert memory.of("talk", 300.0) is None
    assert memory.of("", 0.0) is None
    memory.served("talk", "b", 290.0)
    assert memory.of("talk", 500.0) == "b"


def test_only_so_many_conversations_are_remembered() -> None:
    memory = Affinities(most=2)
    for talk in ("one", "two", "one", "three"):
        memory.served(talk, "a", 0.0)
    assert [memory.of(talk, 1.0) for talk in ("one", "two", "three")] == ["a", None, "a"]
