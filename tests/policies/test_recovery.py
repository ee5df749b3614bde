"""When a request may be compressed recoverably."""

from __future__ import annotations

import pytest

from headstart.attempts import Tokens
from headstart.middleware.shaping.recoverable import RecoveryBalance, offers_tool


@pytest.mark.parametrize(
    ("has_tools", "opening", "before_cut", "offered"),
    [
        (True, 9_000, None, True),
        (True, 9_000, 50_000, True),
        (True, 500, None, False),
        (True, 500, 700, True),
        (False, 9_000, None, False),
        (False, 9_000, 9_000, False),
        (False, 500, 700, True),
    ],
)
def test_the_tool_is_there_from_the_first_request_or_joins_early(
    *, has_tools: bool, opening: int, before_cut: int | None, offered: bool
) -> None:
    assert offers_tool(has_tools=has_tools, opening=opening, before_cut=before_cut) is offered


def test_the_mode_pauses_where_retrievals_cost_more_than_was_cut() -> None:
    balance = RecoveryBalance()
    for _ in range(20):
        assert not balance.is_paused()
        balance.add(1000, [Tokens(prompt=8000, cached=7000, completion=50)], 0.1)
    assert sum(balance.is_paused() for _ in range(300)) == 200


def test_the_mode_stays_where_cuts_save_more() -> None:
    balance = RecoveryBalance()
    for number in range(100):
        rounds = [Tokens(prompt=8000, cached=7000, completion=50)] if number % 5 == 0 else []
        balance.add(1000, rounds, 0.1)
    assert not balance.is_paused()
