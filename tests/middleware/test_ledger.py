"""The books of calls under way."""

from __future__ import annotations

import pytest

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
from headstart.middleware.upstreams.ledger import Ledger
from headstart.observe import Shaped

WON, LOST, FAILED = AttemptOutcome.WON, AttemptOutcome.LOST, AttemptOutcome.FAILED
ABANDONED, REJECTED = AttemptOutcome.ABANDONED, AttemptOutcome.REJECTED


def attempt(outcome: AttemptOutcome) -> Attempt:
    return Attempt(
        upstream="u", model="m", role=AttemptRole.FIRST, outcome=outcome, at=0.0, total_s=1.0
    )


def outcomes(ledger: Ledger) -> list[AttemptOutcome]:
    return [each.outcome for each in ledger.attempts("call")]


def test_attempts_are_taken_once() -> None:
    ledger = Ledger()
    ledger.book("call", attempt(WON))
    assert [each.outcome for each in ledger.take("call")] == [WON]
    assert ledger.take("call") == ()
    assert len(ledger) == 0


@pytest.mark.parametrize("booked_first", [False, True])
@pytest.mark.parametrize(
    ("outcome", "ruling", "expected"),
    [
        (ABANDONED, LOST, LOST),
        (WON, REJECTED, REJECTED),
        (WON, LOST, LOST),
        (FAILED, LOST, FAILED),
    ],
)
def test_a_ruling_holds_before_and_after_booking(
    outcome: AttemptOutcome, ruling: AttemptOutcome, expected: AttemptOutcome, *, booked_first: bool
) -> None:
    ledger = Ledger()
    if booked_first:
        ledger.book("call", attempt(outcome), ".1.0")
    ledger.rule("call", ".1", ruling)
    if not booked_first:
        ledger.book("call", attempt(outcome), ".1.0")
    assert outcomes(ledger) == [expected]


def test_a_ruling_is_on_its_branch_alone() -> None:
    ledger = Ledger()
    ledger.rule("call", ".1", LOST)
    for branch in ("", ".0", ".10", ".1"):
        ledger.book("call", attempt(ABANDONED), branch)
    assert outcomes(ledger) == [ABANDONED, ABANDONED, ABANDONED, LOST]
    assert ledger.ruling("other", ".1") is None


def test_a_settled_ruling_leaves_nothing_behind() -> None:
    ledger = Ledger()
    ledger.rule("call", ".1", LOST)
    ledger.settle("call", ".1")
    ledger.settle("call", ".1")
    assert len(ledger) == 0


def test_the_oldest_calls_leave_when_nobody_takes_them() -> None:
    ledger = Ledger(most=2)
    for id in "abc":
        ledger.book(id, attempt(WON))
    assert [len(ledger.attempts(id)) for id in "abc"] == [0, 1, 1]


def test_what_was_shaped_is_taken_once_and_apart_from_attempts() -> None:
    ledger = Ledger()
    row = Shaped(kind="compress", tokens_before=2, tokens_after=1)
    ledger.shape("call", row)
    ledger.book("call", attempt(WON))
    assert len(ledger.take("call")) == 1
    assert ledger.shaped("call") == (row,)
    assert ledger.shaped("call") == ledger.shaped("other") == ()
    assert len(ledger) == 0
