from __future__ import annotations

import pytest

from headstart.middleware.learning.learner import Audits, CallBudget
from headstart.settings import AuditSettings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_calls_are_capped_within_any_hour() -> None:
    clock = Clock()
    allowance = CallBudget(2, None, clock)
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    clock.now += 3599
    assert not allowance.take()
    clock.now += 2
    assert allowance.take()


def test_money_is_capped_within_any_day() -> None:
    clock = Clock()
    allowance = CallBudget(None, 1.0, clock)
    assert allowance.take()
    allowance.pay(0.6)
    assert allowance.take()
    allowance.pay(0.6)
    assert not allowance.take()
    clock.now += 86_401
    assert allowance.take()


def test_without_caps_nothing_is_refused() -> None:
    allowance = CallBudget(None, None, Clock())
    allowance.pay(1e9)
    assert all(allowance.take() for _ in range(1000))


@pytest.mark.parametrize(
    ("options", "hit", "exact"),
    [
        (AuditSettings(mode="off", rate=1.0, null_rate=1.0), False, False),
        (AuditSettings(mode="sync", rate=1.0, null_rate=1.0), True, False),
        (AuditSettings(mode="background", rate=1.0, null_rate=1.0), True, True),
        (AuditSettings(rate=0.0, null_rate=0.0), False, False),
        (AuditSettings(rate=1.0, null_rate=1.0, max_calls_per_hour=0), False, False),
    ],
)
def test_mode_rate_and_budget_decide_which_audits_are_drawn(
    options: AuditSettings, hit: bool, exact: bool
) -> None:
    audits = Audits(options, Clock())
    rates = audits.rate(0.0), audits.null_rate(0.0)
    assert [audits.draw(rate) for rate in rates] == [hit, exact]


def test_a_domain_may_ask_for_more_audits_than_the_floor() -> None:
    audits = Audits(AuditSettings(rate=0.0), Clock())
    assert audits.draw(audits.rate(1.0))


def test_draws_are_about_as_frequent_as_the_rate() -> None:
    audits = Audits(AuditSettings(rate=0.1), Clock())
    drawn = sum(audits.draw(audits.rate(0.0)) for _ in range(5000))
    # Nine standard deviations around 500.
    assert 300 < drawn < 700
