"""When a clock that reports entries as expired is believed."""

from __future__ import annotations

import math

import pytest

from headstart.embeddings.stores.records import LEAP_S, SETTLES_S, DeletionClock
from support.entries import NOW


class Times:
    """Two clocks that tests move."""

    def __init__(self) -> None:
        self.wall, self.passed = NOW, 0.0
        self.deleting = DeletionClock(lambda: self.wall, lambda: self.passed)

    def move(self, wall_s: float, passed_s: float) -> float:
        self.wall += wall_s
        self.passed += passed_s
        return self.deleting()


def test_time_that_passes_is_believed() -> None:
    times = Times()
    assert times.deleting() == NOW
    assert times.move(86_400, 86_400) == NOW + 86_400
    assert times.move(LEAP_S - 1, 0) == NOW + 86_400 + LEAP_S - 1


def test_a_leap_is_believed_once_it_has_lasted() -> None:
    times = Times()
    assert times.move(LEAP_S, 0) == -math.inf
    assert times.move(SETTLES_S - 1, SETTLES_S - 1) == -math.inf
    assert times.move(1, 1) == NOW + LEAP_S + SETTLES_S


def test_a_clock_that_is_set_back_is_believed_at_once() -> None:
    times = Times()
    times.move(86_400, 1)
    assert times.move(-86_400, 1) == NOW


def test_a_second_leap_waits_anew() -> None:
    times = Times()
    times.move(LEAP_S, 0)
    assert times.move(SETTLES_S + LEAP_S, SETTLES_S) == -math.inf


@pytest.mark.parametrize("away_s", [-86_400, 0, LEAP_S - 1])
def test_a_first_look_soon_after_the_newest_row_is_believed(away_s: float) -> None:
    assert DeletionClock(lambda: NOW + away_s, lambda: 0.0, last=NOW)() == NOW + away_s


def test_a_first_look_long_after_the_newest_row_is_believed_once_it_has_lasted() -> None:
    passed = 0.0
    deleting = DeletionClock(lambda: NOW + LEAP_S + passed, lambda: passed, last=NOW)
    assert deleting() == NOW
    passed = SETTLES_S - 1
    assert deleting() == NOW
    passed = SETTLES_S
    assert deleting() == NOW + LEAP_S + SETTLES_S


def test_a_clock_that_was_ahead_at_the_start_and_is_set_back_is_believed() -> None:
    wall = NOW + 86_400
    deleting = DeletionClock(lambda: wall, lambda: 0.0, last=NOW)
    assert deleting() == NOW
    wall = NOW + 5
    assert deleting() == NOW + 5
