"""Rows of the books, as a gateway would have written them, with calls and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
from headstart.decisions import Outcome
from headstart.observe import Served
from headstart.report.accounts import Accounts

if TYPE_CHECKING:
    from headstart.report.values import Estimate, Report, SavingsLine


def served(outcome: Outcome = Outcome.MISS, **changes: Any) -> Served:
    """Return the row of a request that the provider answered: first token at 0.5 s, end at 2 s."""
    row = Served(
        id="01",
        at=1000.0,
        endpoint="/v1/chat/completions",
        outcome=outcome,
        status=200,
        stream=True,
        total_s=2.0,
        ttft_s=0.5,
        model="m",
    )
    return msgspec.structs.replace(row, **changes)


def attempt(outcome: AttemptOutcome = AttemptOutcome.WON, **changes: Any) -> Attempt:
    """Return the first call of a request."""
    call = Attempt(
        upstream="a", model="m", role=AttemptRole.FIRST, outcome=outcome, at=0.0, total_s=1.0
    )
    return msgspec.structs.replace(call, **changes)


def hit(total_s: float = 0.01, original_s: float = 2.0, **changes: Any) -> Served:
    """Return a hit on the answer of such a call."""
    row = served(
        Outcome.EXACT,
        entry="e",
        total_s=total_s,
        ttft_s=total_s,
        saved_total_s=original_s - total_s,
        saved_ttft_s=0.5 - total_s,
        saved_tokens=100,
        saved_usd=0.02,
    )
    return msgspec.structs.replace(row, **changes)


def report_on(*rows: Served) -> Report:
    """Return the report over rows."""
    accounts = Accounts()
    for row in rows:
        accounts.add(row)
    return accounts.report()


def line_of(report: Report, name: str) -> SavingsLine:
    """Return a line of the savings of all requests."""
    return report.overall.savings.line(name)


def estimate_of(report: Report, measure: str) -> Estimate:
    """Return both estimates of a measure."""
    assert report.estimates is not None
    return next(each for each in report.estimates.estimates if each.measure == measure)
