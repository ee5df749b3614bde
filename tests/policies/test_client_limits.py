"""Limits of a client key: windows of the calendar, what a call may cost, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headstart.policies.callers import (
    MOST_UNITS,
    USD_UNITS,
    Allowance,
    Period,
    Usage,
    allows_model,
    most_usage,
    refusal,
    reservations,
    spending,
    window,
)
from headstart.policies.cost import Price
from headstart.settings import ClientLimits
from headstart.types import Charged


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "now", "label", "ends"),
    [
        ("minute", "2026-11-23T23:59:59.9", "2026-11-23T23:59", "2026-11-24T00:00"),
        ("day", "2026-11-23T00:00", "2026-11-23", "2026-11-24T00:00"),
        ("day", "2026-11-23T23:59:59", "2026-11-23", "2026-11-24T00:00"),
        ("day", "2026-12-31T12:00", "2026-12-31", "2027-01-01T00:00"),
        ("month", "2026-12-31T23:59:59", "2026-12", "2027-01-01T00:00"),
        ("month", "2028-02-29T12:00", "2028-02", "2028-03-01T00:00"),
        ("month", "2026-01-31T00:00", "2026-01", "2026-02-01T00:00"),
    ],
)
def test_windows_end_at_midnight_and_at_the_end_of_the_month_in_utc(
    period: Period, now: str, label: str, ends: str
) -> None:
    assert window(period, at(now)) == (label, at(ends))


def test_days_and_months_are_counted_as_soon_as_anything_limits_the_cost() -> None:
    assert spending(ClientLimits(requests_per_minute=5, models=("a",))) == ()
    found = spending(ClientLimits(usd_per_day=1.5, tokens_per_minute=10))
    assert [(each.setting, each.most) for each in found] == [
        ("usd_per_day", 1.5 * USD_UNITS),
        ("usd_per_month", None),
        ("tokens_per_day", None),
        ("tokens_per_month", None),
        ("tokens_per_minute", 10),
    ]


def test_a_limit_of_nothing_is_a_limit() -> None:
    assert next(each.most for each in spending(ClientLimits(usd_per_day=0.0))) == 0


def test_models_are_named_by_patterns() -> None:
    limits = ClientLimits(models=("gpt-4o-mini", "claude-*"))
    allowed = [allows_model(limits, name) for name in ("gpt-4o-mini", "claude-opus-5", "gpt-4o")]
    assert allowed == [True, True, False]
    assert allows_model(ClientLimits(), "anything")


def test_a_call_reserves_its_prompt_at_the_dearest_price() -> None:
    price = Price(input_per_million=1.0, output_per_million=10.0)
    usd, tokens = most_usage(price, 1000, 100)
    assert usd == pytest.approx(0.002)
    assert tokens == 1100
    writes = Price(input_per_million=1.0, output_per_million=10.0, cache_write_per_million=2.0)
    assert most_usage(writes, 1000, 100).usd == pytest.approx(0.003)
    cheaper = Price(input_per_million=1.0, output_per_million=10.0, cache_write_per_million=0.5)
    assert most_usage(cheaper, 1000, 100).usd == pytest.approx(0.002)
    assert most_usage(None, 1000, 100) == Usage(0.0, 1100)


def test_counters_are_apart_by_caller_measure_and_window() -> None:
    allowances = spending(ClientLimits(usd_per_day=1.0, tokens_per_minute=500))
    now = at("2026-11-23T10:11")
    charges = reservations(allowances, "team-a", Usage(0.25, 70), now)
    assert {each.counter: each.amount for each in charges} == {
        "client/team-a/usd/2026-11-23": USD_UNITS // 4,
        "client/team-a/usd/2026-11": USD_UNITS // 4,
        "client/team-a/tokens/2026-11-23": 70,
        "client/team-a/tokens/2026-11": 70,
        "client/team-a/tokens/2026-11-23T10:11": 70,
    }
    others = reservations(allowances, "team-b", Usage(0.25, 70), now)
    assert not {each.counter for each in charges} & {each.counter for each in others}


def test_a_call_larger_than_a_minute_may_begin_when_nothing_is_used() -> None:
    day, minute = Allowance("tokens", "day", 9000), Allowance("tokens", "minute", 500)
    charges = reservations((day, minute), "a", Usage(0.0, 800), 0.0)
    assert [each.amount for each in charges] == [800, 500]


def test_the_refusal_names_the_limit_that_lasts_longest() -> None:
    limits = ClientLimits(usd_per_day=1.0, usd_per_month=2.0, tokens_per_minute=100)
    allowances, now = spending(limits), at("2026-11-29T22:00")
    charges = reservations(allowances, "a", Usage(0.5, 90), now)
    full = Charged(added=False, values=(USD_UNITS, 2 * USD_UNITS, 0, 0, 100))
    error = refusal(allowances, charges, full, now)
    assert (error.status, error.code) == (429, "insufficient_quota")
    assert error.retry_after_s == 26 * 3600
    assert "usd_per_month = $2; $2 are used, and this call may use $0.5" in str(error)
    assert "2026-12-01 00:00 UTC" in str(error)


def test_a_full_minute_is_refused_for_the_rest_of_it() -> None:
    allowances = (Allowance("requests", "minute", 3),)
    now = at("2026-11-29T22:00:45")
    charges = (allowances[0].charge("a", 1, now),)
    error = refusal(allowances, charges, Charged(added=False, values=(3,)), now)
    assert (error.code, error.retry_after_s, error.lasts) == ("rate_limit_exceeded", 15.0, False)


def test_a_call_of_any_number_of_tokens_fits_a_counter_of_64_bits() -> None:
    dear = Price(input_per_million=1e6, output_per_million=1e6)
    usage = most_usage(dear, 10, 10**400)
    charges = reservations(spending(ClientLimits(usd_per_day=1.0)), "a", usage, 0.0)
    assert {each.amount for each in charges} == {MOST_UNITS}
    assert MOST_UNITS * 1000 < 2**63


def test_a_call_that_never_fits_is_told_so() -> None:
    allowances = spending(ClientLimits(tokens_per_day=1000))
    charges = reservations(allowances, "a", Usage(0.0, 4000), 0.0)
    error = refusal(allowances, charges, Charged(added=False, values=(0, 0, 0, 0)), 0.0)
    assert "this call may use 4,000 tokens: ask for fewer tokens" in str(error)
