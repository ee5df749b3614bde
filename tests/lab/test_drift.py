"""The test for drift, on months of simulated providers whose true figures are known."""

from __future__ import annotations

import pytest

from benchmarks.buying import CHANGES, Change, first_alarm_day, rounds
from headstart.lab.quality import Watch, limit_for, spent_usd


def test_months_without_a_change_have_no_false_alarm() -> None:
    assert [first_alarm_day(Change(), seed) for seed in range(40)] == [None] * 40


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_within_two_days_for_a_dollar(name: str) -> None:
    change = CHANGES[name]
    for seed in range(8):
        day = first_alarm_day(change, seed)
        assert day is not None
        assert change.day <= day <= change.day + 2
        spent = [each for each in rounds(day, change, seed) if each.at >= change.day * 86_400]
        assert sum(each.cost_usd for each in spent) <= 1.0


def test_an_alarm_names_the_figure_and_both_values() -> None:
    tests = Watch(limit_for(3600, 4))
    found = [alarm for each in rounds(30, Change(14.0, ttft=2.0), 3) for alarm in tests.add(each)]
    (alarm,) = found
    assert alarm.figure == "first token"
    assert alarm.before == pytest.approx(0.3, rel=0.2)
    assert alarm.now / alarm.before == pytest.approx(2.0, rel=0.3)


def test_after_an_alarm_the_new_level_is_usual() -> None:
    tests = Watch(limit_for(3600, 4))
    alarms = [a for each in rounds(40, Change(10.0, ttft=3.0), 5) for a in tests.add(each)]
    assert [alarm.figure for alarm in alarms] == ["first token"]


def test_a_faster_provider_raises_no_alarm() -> None:
    tests = Watch(limit_for(3600, 4))
    assert not [a for each in rounds(30, Change(14.0, ttft=0.4), 1) for a in tests.add(each)]


def test_a_new_price_is_an_alarm_at_once() -> None:
    tests = Watch(limit_for(3600, 4))
    first, second, third = (each for each in rounds(3 / 24, Change(), 1))
    old, new = (1.0, 4.0), (1.0, 5.0)
    alarms = [
        tests.add(
            type(each)(**{f: getattr(each, f) for f in each.__struct_fields__} | {"price": p})
        )
        for each, p in ((first, old), (second, old), (third, new))
    ]
    assert alarms[:2] == [[], []]
    ((alarm,),) = alarms[2:]
    assert (alarm.figure, alarm.before, alarm.now) == ("price", 4.0, 5.0)


def test_the_history_gives_the_same_evidence_as_the_rounds_did() -> None:
    history = list(rounds(12, Change(11.9, ttft=1.5), 2))
    one, other = Watch(1e9), Watch(1e9)
    for each in history:
        one.add(each)
    for each in history:
        other.add(each)
    assert one.evidence(history[-1]) == other.evidence(history[-1]) > 0.0


def test_a_day_of_spending_is_of_the_last_24_hours() -> None:
    history = list(rounds(3, Change(), 1))
    now = history[-1].at + 1
    assert spent_usd(history, now) == pytest.approx(24 * 8 * 0.002)
