"""The log of a request's attempts."""

from __future__ import annotations

import pytest

from headstart.attempts import AttemptLog, AttemptOutcome, ShapingEffect
from support.booked import attempt

WON, LOST, FAILED = AttemptOutcome.WON, AttemptOutcome.LOST, AttemptOutcome.FAILED
ABANDONED, REJECTED = AttemptOutcome.ABANDONED, AttemptOutcome.REJECTED


def outcomes(log: AttemptLog) -> list[AttemptOutcome]:
    return [row.attempt.outcome for row in log.rows]


def test_attempts_are_taken_once() -> None:
    log = AttemptLog()
    log.book(attempt(WON))
    assert [each.outcome for each in log.take()] == [WON]
    assert log.take() == ()


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
    log = AttemptLog()
    branch = log.branch()
    below = branch.branch()
    if booked_first:
        below.book(attempt(outcome))
    branch.rule(ruling)
    if not booked_first:
        below.book(attempt(outcome))
    assert outcomes(log) == [expected]


def test_a_ruling_is_on_its_branch_alone() -> None:
    log = AttemptLog()
    first, second = log.branch(), log.branch()
    second.rule(LOST)
    for each in (log, first, first.branch(), second):
        each.book(attempt(ABANDONED))
    assert outcomes(log) == [ABANDONED, ABANDONED, ABANDONED, LOST]
    assert AttemptLog().ruling is None


def test_a_branch_books_for_its_whole_request() -> None:
    log = AttemptLog()
    log.branch().book(attempt(WON))
    assert len(log.take()) == 1
    log.branch().branch().book(attempt(WON))
    assert len(log.rows) == 1


def test_shaping_effects_are_taken_once_and_apart_from_attempts() -> None:
    log = AttemptLog()
    row = ShapingEffect(kind="compress", tokens_before=2, tokens_after=1)
    log.branch().shaped.append(row)
    log.book(attempt(WON))
    assert len(log.take()) == 1
    assert log.take_shaped() == (row,)
    assert log.take_shaped() == AttemptLog().take_shaped() == ()
