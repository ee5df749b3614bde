"""What calls cost: cached and written prompt tokens, fees, tiers, and cancelled calls."""

from __future__ import annotations

import pytest

from headstart.attempts import Tokens
from headstart.policies.cost import Price, cancelled_cost_usd

PLAIN = Price(input_per_million=2.0, output_per_million=8.0)
RICH = Price(
    input_per_million=2.0,
    output_per_million=8.0,
    cached_per_million=0.2,
    cache_write_per_million=2.5,
    per_request=0.01,
    multiplier=3.0,
)


@pytest.mark.parametrize(
    ("price", "tokens", "usd"),
    [
        (PLAIN, Tokens(prompt=1_000_000, completion=500_000), 6.0),
        (PLAIN, Tokens(prompt=1_000_000, cached=900_000, cache_write=50_000), 2.0),
        (PLAIN, Tokens(completion=100, reasoning=90), 0.0008),
        (RICH, Tokens(), 0.03),
        (RICH, Tokens(prompt=1_000_000, cached=600_000), 3 * (0.8 + 0.12 + 0.01)),
        (RICH, Tokens(prompt=1_000_000, cache_write=1_000_000), 3 * 2.51),
        (RICH, Tokens(prompt=10, cached=1_000_000), 3 * 0.21),
        (
            RICH,
            Tokens(prompt=1_000_000, cache_write=800_000, hour_write=600_000),
            3 * (0.4 + 0.5 + 2.4 + 0.01),
        ),
        (PLAIN, Tokens(prompt=1_000_000, cache_write=800_000, hour_write=600_000), 2.0),
    ],
)
def test_each_kind_of_token_has_its_price(price: Price, tokens: Tokens, usd: float) -> None:
    assert price.cost_usd(tokens) == pytest.approx(usd)


def test_a_cancelled_call_costs_what_was_produced_where_billing_stops() -> None:
    so_far = Tokens(prompt=2000, completion=10)
    cost = cancelled_cost_usd(PLAIN, so_far, 500.0, cancels_billing=True)
    assert cost == pytest.approx(PLAIN.cost_usd(so_far))


@pytest.mark.parametrize(("produced", "billed"), [(10, 500), (700, 700)])
def test_a_cancelled_call_costs_the_whole_answer_where_it_does_not(
    produced: int, billed: int
) -> None:
    cost = cancelled_cost_usd(PLAIN, Tokens(2000, produced), 500.0, cancels_billing=False)
    assert cost == pytest.approx(PLAIN.cost_usd(Tokens(2000, billed)))


def test_a_race_of_two_costs_half_more_or_twice_as_much() -> None:
    whole = PLAIN.cost_usd(Tokens(2000, 500))
    lost = [
        cancelled_cost_usd(PLAIN, Tokens(2000), 500.0, cancels_billing=cancels)
        for cancels in (True, False)
    ]
    assert [loser / whole for loser in lost] == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(
    ("price", "tokens", "usd"),
    [
        (PLAIN, Tokens(prompt=1_000_000), 0.0),
        (RICH, Tokens(prompt=1_000_000, completion=5), 3 * 1.8),
        (RICH, Tokens(prompt=1_000_000, cached=600_000), 3 * 0.72),
        (RICH, Tokens(prompt=1_000_000, cache_write=1_000_000), 3 * 2.3),
        (RICH, Tokens(prompt=1_000_000, cache_write=1_000_000, hour_write=1_000_000), 3 * 3.8),
        (RICH, Tokens(prompt=1_000_000, cached=1_000_000), 0.0),
    ],
)
def test_what_a_prompt_in_the_prefix_cache_would_have_saved(
    price: Price, tokens: Tokens, usd: float
) -> None:
    assert price.prefix_saving_usd(tokens) == pytest.approx(usd)


def test_a_cached_prompt_saves_the_difference_to_its_price() -> None:
    for price, saved_usd in ((RICH, 3 * 1.8), (PLAIN, 0.0)):
        fresh = price.cost_usd(Tokens(prompt=1_000_000))
        cached = price.cost_usd(Tokens(prompt=1_000_000, cached=1_000_000))
        assert fresh - cached == pytest.approx(saved_usd)
