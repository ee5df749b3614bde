"""Machines that are paid by the hour: use, cost of a token and break-even, on known loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.buying import HOURLY_USD, break_even_error, machine_accounts, served
from headstart.config.checks import checked
from headstart.config.providers import sends_no_bill
from headstart.factory.upstreams import metered_price, price_of
from headstart.settings import PriceSettings, Settings, UpstreamSettings

if TYPE_CHECKING:
    from headstart.observe import Served
    from headstart.usual_calls import MachineStats


def figures(rows: list[Served]) -> MachineStats:
    found = machine_accounts()
    for each in rows:
        found.add(each)
    (stats,) = found.machines()
    return stats


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("calls_per_s", [0.05, 0.5, 5.0])
def test_the_break_even_is_within_two_percent_of_the_truth(calls_per_s: float, seed: int) -> None:
    assert break_even_error(calls_per_s, seed) <= 0.02


def test_calls_that_overlap_are_busy_once() -> None:
    stats = figures([served(1, 0.0, 50.0, 10), served(2, 10.0, 20.0, 10), served(3, 90.0, 10.0, 1)])
    assert stats.busy_share == pytest.approx(0.6)
    assert stats.calls_at_a_time == pytest.approx(0.8)
    assert stats.usd == pytest.approx(HOURLY_USD * 100 / 3600)


def test_keys_of_one_upstream_are_one_machine_and_others_are_not_counted() -> None:
    stats = figures(
        [served(1, 0.0, 1.0, 10), served(2, 5.0, 1.0, 10, "gpu#2"), served(3, 6.0, 4.0, 9, "api")]
    )
    assert (stats.calls, stats.completion_tokens) == (2, 20)
    assert stats.hours == pytest.approx(10 / 3600)


def test_no_request_gives_no_figures() -> None:
    assert machine_accounts().machines() == ()


def test_calls_to_a_machine_cost_nothing_and_its_token_price_is_only_compared() -> None:
    price = PriceSettings(input_per_million=1.0, output_per_million=2.0)
    machine = UpstreamSettings(
        name="gpu", base_url="https://gpu.example.com/v1", price_per_hour=HOURLY_USD,
        price={"default": price},
    )  # fmt: skip
    (upstream,) = checked(Settings(upstream=(machine,))).upstream
    charged, compared = price_of(upstream, "m"), metered_price(upstream, "m")
    assert charged is not None
    assert (charged.input_per_million, charged.output_per_million) == (0.0, 0.0)
    assert compared is not None
    assert compared.output_per_million == 2.0
    assert sends_no_bill(upstream)
    assert upstream.cancels_billing is True
