"""Machines that are paid by the hour: use, cost of a token and break-even, on known loads."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
from headstart.config.checks import checked
from headstart.config.discovery import sends_no_bill
from headstart.decisions import Outcome
from headstart.factory.upstreams import metered_price, price_of
from headstart.observe import Served
from headstart.report.machines import Machine, MachineAccounts
from headstart.settings import PriceSettings, Settings, UpstreamSettings

if TYPE_CHECKING:
    from headstart.report.values import MachineStats

PER_TOKEN = 2e-6
HOURLY = 3.0


def served(number: int, at: float, total_s: float, tokens: int, upstream: str = "gpu") -> Served:
    attempt = Attempt(
        upstream=upstream,
        model="m",
        role=AttemptRole.FIRST,
        outcome=AttemptOutcome.WON,
        at=at,
        total_s=total_s,
        completion_tokens=tokens,
    )
    return Served(
        id=f"{number:026d}",
        at=at,
        endpoint="/v1/chat/completions",
        outcome=Outcome.MISS,
        status=200,
        stream=True,
        total_s=total_s,
        attempts=(attempt,),
    )


def accounts() -> MachineAccounts:
    return MachineAccounts({"gpu": Machine(HOURLY, lambda a: a.completion_tokens * PER_TOKEN)})


def figures(rows: list[Served]) -> MachineStats:
    found = accounts()
    for each in rows:
        found.add(each)
    (stats,) = found.machines()
    return stats


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("calls_per_s", [0.05, 0.5, 5.0])
def test_the_break_even_is_within_two_percent_of_the_truth(calls_per_s: float, seed: int) -> None:
    rng, at, rows = random.Random(seed), 0.0, []
    for number in range(20_000):
        at += rng.expovariate(calls_per_s)
        tokens = round(rng.lognormvariate(5.0, 0.6))
        rows.append(served(number, at, tokens / 50, tokens))
    stats = figures(rows)
    mean_tokens = 2.718281828 ** (5.0 + 0.6**2 / 2)
    truth = HOURLY / (mean_tokens * PER_TOKEN)
    assert stats.break_even_load is not None
    found = stats.break_even_load * stats.calls / stats.hours
    assert found == pytest.approx(truth, rel=0.02)
    assert stats.break_even_tokens_per_hour == pytest.approx(HOURLY / PER_TOKEN)
    offered = calls_per_s * mean_tokens / 50
    assert stats.calls_at_a_time == pytest.approx(offered, rel=0.05)
    assert stats.busy_share == pytest.approx(1 - 2.718281828**-offered, rel=0.05)
    assert stats.usd_per_million == pytest.approx(
        HOURLY / 3600 / (calls_per_s * mean_tokens) * 1e6, rel=0.05
    )


def test_calls_that_overlap_are_busy_once() -> None:
    stats = figures([served(1, 0.0, 50.0, 10), served(2, 10.0, 20.0, 10), served(3, 90.0, 10.0, 1)])
    assert stats.busy_share == pytest.approx(0.6)
    assert stats.calls_at_a_time == pytest.approx(0.8)
    assert stats.usd == pytest.approx(HOURLY * 100 / 3600)


def test_keys_of_one_upstream_are_one_machine_and_others_are_not_counted() -> None:
    stats = figures(
        [served(1, 0.0, 1.0, 10), served(2, 5.0, 1.0, 10, "gpu#2"), served(3, 6.0, 4.0, 9, "api")]
    )
    assert (stats.calls, stats.completion_tokens) == (2, 20)
    assert stats.hours == pytest.approx(10 / 3600)


def test_no_request_gives_no_figures() -> None:
    assert accounts().machines() == ()


def test_calls_to_a_machine_cost_nothing_and_its_token_price_is_only_compared() -> None:
    price = PriceSettings(input_per_million=1.0, output_per_million=2.0)
    machine = UpstreamSettings(
        name="gpu", base_url="https://gpu.example.com/v1", price_per_hour=HOURLY,
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
