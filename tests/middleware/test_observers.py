"""Observers get the observations that they want, in the order in which they were added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.middleware.observers import Observers
from headstart.observe import Committed, Gated, GateOutcome, Observation, StageFailed

if TYPE_CHECKING:
    import pytest


GATED = Gated(outcome=GateOutcome.STOPPED)
COMMITTED = Committed(id="a", bytes=1)
FAILED = StageFailed(stage="store", error="StoreError")


class Keeping:
    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def notify(self, observation: Observation) -> None:
        self.seen.append(observation)


class Choosing(Keeping):
    observes = (Committed, StageFailed)


class Counting(Keeping):
    def observes(self) -> int:
        return len(self.seen)


class Raising(Keeping):
    def notify(self, observation: Observation) -> None:
        super().notify(observation)
        raise RuntimeError("an observer failed")


def test_an_observer_gets_only_what_it_wants_and_others_get_everything() -> None:
    choosing, keeping = Choosing(), Keeping()
    observers = Observers([choosing, keeping])
    for each in (GATED, COMMITTED, FAILED):
        observers.notify(each)
    assert choosing.seen == [COMMITTED, FAILED]
    assert keeping.seen == [GATED, COMMITTED, FAILED]


def test_an_observer_that_has_something_else_of_that_name_gets_everything() -> None:
    counting = Counting()
    Observers([counting]).notify(GATED)
    assert counting.seen == [GATED]


class Mock(Keeping):
    """Has an attribute of any name, as a mock has."""

    def __getattr__(self, name: str) -> tuple[()]:
        return ()


def test_a_mock_gets_everything() -> None:
    mock = Mock()
    Observers([mock]).notify(GATED)
    assert mock.seen == [GATED]


def test_observers_that_come_and_go_are_noticed_at_once() -> None:
    given, own, later = Keeping(), Choosing(), Choosing()
    outer = Observers([given])
    inner = outer.for_engine()
    inner.notify(COMMITTED)
    inner.add(own)
    outer.add(later)
    inner.notify(COMMITTED)
    outer.remove(given)
    inner.notify(FAILED)
    assert given.seen == [COMMITTED, COMMITTED]
    assert own.seen == later.seen == [COMMITTED, FAILED]


def test_an_observer_that_raises_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    raising, keeping = Raising(), Keeping()
    observers = Observers([raising, keeping])
    observers.notify(GATED)
    observers.notify(GATED)
    assert (len(raising.seen), len(keeping.seen)) == (1, 2)
    assert "switched off" in caplog.text
