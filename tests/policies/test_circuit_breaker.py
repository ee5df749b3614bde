"""The breaker opens after failures, probes with one call at a time, and recovers slowly."""

from __future__ import annotations

import random
from collections import deque

import pytest

from headstart.policies.routing.failures import (
    CircuitBreaker,
    FailureKind,
    Permit,
    classify,
    failure,
)

SERVER = failure(FailureKind.SERVER)


def admit(breaker: CircuitBreaker, now: float) -> Permit:
    permit = breaker.admit(now)
    assert permit is not None
    return permit


def tripped(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(5):
        breaker.failed(admit(breaker, now), SERVER, now)
    assert breaker.admit(now) is None
    return breaker


def test_four_failures_in_a_row_do_not_open_it_and_five_do() -> None:
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.failed(admit(breaker, 0.0), SERVER, 0.0)
    assert breaker.ready_in_s(0.0) == 0.0
    breaker.failed(admit(breaker, 0.0), SERVER, 0.0)
    assert breaker.ready_in_s(0.0) == 1.0


def test_a_success_in_between_ends_the_streak() -> None:
    breaker = CircuitBreaker()
    for now in range(3):
        for _ in range(2):
            breaker.failed(admit(breaker, now), SERVER, now)
        for _ in range(4):
            breaker.succeeded(admit(breaker, now), now)
    assert breaker.ready_in_s(3) == 0.0


def test_half_of_the_calls_failing_opens_it_without_a_streak() -> None:
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.succeeded(admit(breaker, 0.0), 0.0)
        breaker.failed(admit(breaker, 0.0), SERVER, 0.0)
    breaker.succeeded(admit(breaker, 0.0), 0.0)
    assert breaker.ready_in_s(0.0) == 0.0
    assert breaker.degraded(0.0)
    breaker.failed(admit(breaker, 0.0), SERVER, 0.0)
    assert breaker.ready_in_s(0.0) > 0.0


def test_failures_of_long_ago_are_forgotten() -> None:
    breaker = CircuitBreaker()
    for now in range(0, 3000, 100):
        breaker.failed(admit(breaker, now), SERVER, now)
        breaker.succeeded(admit(breaker, now), now)
    assert breaker.ready_in_s(3000) == 0.0


@pytest.mark.parametrize(
    "kind",
    [FailureKind.BAD_REQUEST, FailureKind.CONTEXT_TOO_LONG, FailureKind.CONTENT_POLICY],
)
def test_the_callers_faults_never_open_it(kind: FailureKind) -> None:
    breaker = CircuitBreaker()
    for _ in range(50):
        breaker.failed(admit(breaker, 0.0), failure(kind), 0.0)
    assert breaker.admit(0.0)
    assert not breaker.degraded(0.0)


def test_calls_that_say_nothing_are_no_mark_and_no_excuse() -> None:
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.failed(admit(breaker, 0.0), SERVER, 0.0)
    for _ in range(50):
        breaker.neutral(admit(breaker, 0.0))
    breaker.failed(admit(breaker, 0.0), SERVER, 0.0)
    assert breaker.admit(0.0) is None


def test_superseded_calls_are_no_mark_and_had_not_failed_until_then() -> None:
    breaker = CircuitBreaker()
    for _ in range(50):
        breaker.superseded(admit(breaker, 0.0))
    assert not breaker.degraded(0.0)
    for _ in range(40):
        breaker.failed(admit(breaker, 0.0), SERVER, 0.0)
        for _ in range(2):
            breaker.superseded(admit(breaker, 0.0))
    assert breaker.ready_in_s(0.0) == 0.0
    for _ in range(25):
        if (permit := breaker.admit(0.0)) is not None:
            breaker.failed(permit, SERVER, 0.0)
    assert breaker.ready_in_s(0.0) > 0.0


def test_refusals_of_one_burst_close_it_once() -> None:
    breaker = CircuitBreaker()
    limited = failure(FailureKind.RATE_LIMITED)
    assert limited.pauses_s is not None
    burst = [admit(breaker, 0.0 + i / 1000) for i in range(20)]
    for i, permit in enumerate(burst):
        breaker.failed(permit, limited, 0.1 + i / 1000)
    first_s = breaker.ready_in_s(0.12)
    assert first_s <= limited.pauses_s
    again = 0.12 + first_s
    breaker.failed(admit(breaker, again), limited, again + 0.1)
    assert breaker.ready_in_s(again + 0.1) == pytest.approx(2 * limited.pauses_s)


@pytest.mark.parametrize(("refused", "least", "most"), [(0.3, 0, 6), (0.9, 80, 100)])
def test_slow_answers_do_not_make_quick_refusals_look_like_an_outage(
    refused: float, least: int, most: int
) -> None:
    """Ten calls a second for five minutes, five times; refused at once, or answered after 3 s."""
    opened = 0
    for seed in range(5):
        breaker, draw = CircuitBreaker(), random.Random(seed).random
        answers = deque[tuple[float, Permit]]()
        for call in range(3000):
            now = call / 10
            while answers and answers[0][0] <= now:
                breaker.succeeded(answers.popleft()[1], now)
            permit = breaker.admit(now)
            if permit is None:
                continue
            if draw() < refused:
                breaker.failed(permit, SERVER, now)
                opened += breaker.ready_in_s(now) > 0.0
            else:
                answers.append((now + 3.0, permit))
    assert least <= opened <= most


def test_a_provider_that_hangs_opens_the_breaker_by_the_five_longest_waits() -> None:
    breaker = CircuitBreaker()
    waiting = [admit(breaker, call / 30) for call in range(900)]
    for late, permit in enumerate(waiting[:5]):
        assert breaker.ready_in_s(30.0 + late) == 0.0
        breaker.failed(permit, failure(FailureKind.SILENT), 30.0 + late)
    assert breaker.ready_in_s(34.0) > 0.0


def test_failures_that_take_a_minute_weigh_no_more_than_their_calls_when_traffic_falls() -> None:
    """Of ten calls a second one in seven ends in an error after 60 s; then there are few calls."""
    breaker, failing = CircuitBreaker(), deque[tuple[float, Permit]]()
    for call in range(4000):
        now = call / 10 if call < 3000 else 300 + (call - 3000)
        if now > 420:
            break
        while failing and failing[0][0] <= now:
            breaker.failed(failing.popleft()[1], SERVER, now)
        assert breaker.ready_in_s(now) == 0.0
        permit = admit(breaker, now)
        if call % 7 == 0:
            failing.append((now + 60, permit))
        else:
            breaker.succeeded(permit, now)


def test_failures_that_are_reported_out_of_order_are_in_a_row_all_the_same() -> None:
    breaker = CircuitBreaker()
    calls = [admit(breaker, 0.0) for _ in range(30)]
    for place in (12, 10, 14, 11):
        breaker.failed(calls[place], SERVER, 0.0)
        assert breaker.ready_in_s(0.0) == 0.0
    breaker.failed(calls[13], SERVER, 0.0)
    assert breaker.ready_in_s(0.0) > 0.0


def test_an_answer_of_one_that_was_asked_anyway_closes_it_and_a_failure_changes_nothing() -> None:
    breaker = tripped()
    breaker.failed(breaker.insist(0.1), SERVER, 0.1)
    assert breaker.ready_in_s(0.1) == pytest.approx(0.9)
    breaker.succeeded(breaker.insist(0.2), 0.2)
    assert breaker.ready_in_s(0.2) == 0.0
    assert breaker.weight(0.2) == 0.1


def test_an_answer_of_before_a_probe_went_out_changes_nothing() -> None:
    breaker = tripped()
    early = breaker.insist(0.5)
    probe = admit(breaker, 1.0)
    breaker.succeeded(early, 1.1)
    breaker.failed(probe, SERVER, 1.2)
    assert breaker.ready_in_s(1.2) == 2.0


def test_only_one_probe_runs_and_its_success_closes_the_breaker() -> None:
    breaker = tripped()
    probe = admit(breaker, 1.0)
    assert probe.probe
    assert breaker.admit(1.0) is None
    assert breaker.ready_in_s(1.0) == 1.0
    breaker.succeeded(probe, 1.5)
    assert not admit(breaker, 1.5).probe


def test_openings_double_up_to_twenty_seconds() -> None:
    breaker, now, waits = tripped(), 0.0, []
    for _ in range(7):
        wait_s = breaker.ready_in_s(now)
        waits.append(wait_s)
        now += wait_s
        breaker.failed(admit(breaker, now), SERVER, now)
    assert waits == [1, 2, 4, 8, 16, 20, 20]


def test_a_recovered_provider_is_found_within_thirty_seconds_by_few_probes() -> None:
    breaker, probes, recovered = CircuitBreaker(), 0, None
    for call in range(40):
        now = call * 4.0
        for _ in range(2):
            permit = breaker.admit(now)
            if permit is None:
                break
            probes += permit.probe
            if now < 60.0:
                breaker.failed(permit, SERVER, now)
            else:
                breaker.succeeded(permit, now)
                recovered = recovered or now
    assert recovered is not None
    assert recovered - 60.0 <= 30.0
    assert probes <= 8


def test_a_late_report_from_before_the_opening_changes_nothing() -> None:
    breaker = CircuitBreaker()
    early = admit(breaker, 0.0)
    for _ in range(5):
        breaker.failed(admit(breaker, 0.0), SERVER, 0.0)
    breaker.succeeded(early, 0.1)
    assert breaker.admit(0.1) is None
    breaker.failed(early, SERVER, 0.2)
    assert breaker.ready_in_s(0.2) == pytest.approx(0.8)


def test_a_lost_probe_is_replaced_and_its_late_report_is_fenced() -> None:
    breaker = tripped()
    lost = admit(breaker, 1.0)
    second = admit(breaker, 61.0)
    breaker.succeeded(lost, 61.5)
    breaker.neutral(lost)
    assert breaker.admit(61.5) is None
    breaker.failed(second, SERVER, 62.0)
    assert breaker.ready_in_s(62.0) == 2.0


@pytest.mark.parametrize("kind", [None, FailureKind.BAD_REQUEST])
def test_a_probe_that_says_nothing_makes_way_for_the_next(kind: FailureKind | None) -> None:
    breaker = tripped()
    probe = admit(breaker, 1.0)
    if kind is None:
        breaker.neutral(probe)
    else:
        breaker.failed(probe, failure(kind), 1.0)
    assert admit(breaker, 1.0).probe


def test_an_upstream_that_answers_again_gets_a_growing_share() -> None:
    breaker = tripped()
    assert breaker.weight(0.0) == 0.0
    assert breaker.weight(1.0) == 1.0, "the call that probes is one alone"
    breaker.succeeded(admit(breaker, 1.0), 2.0)
    assert breaker.weight(2.0) == 0.1
    assert breaker.weight(7.0) == 0.5
    assert breaker.weight(30.0) == 1.0
    assert CircuitBreaker().weight(0.0) == 1.0


def test_an_upstream_that_failed_lately_is_degraded_for_a_time() -> None:
    breaker = CircuitBreaker()
    for now in (0.0, 1.0):
        breaker.failed(admit(breaker, now), SERVER, now)
    assert [breaker.degraded(now) for now in (1.0, 10.9, 11.0)] == [True, True, False]
    breaker = tripped()
    assert [breaker.degraded(now) for now in (0.9, 1.0)] == [True, False]
    admit(breaker, 1.0)
    assert breaker.degraded(1.0)


def test_an_upstream_that_fails_again_soon_is_paused_longer() -> None:
    breaker = tripped()
    breaker.succeeded(admit(breaker, 1.0), 1.0)
    for _ in range(5):
        breaker.failed(admit(breaker, 2.0), SERVER, 2.0)
    assert breaker.ready_in_s(2.0) == 2.0


def test_an_upstream_that_was_well_for_long_gets_the_first_pause_again() -> None:
    breaker = tripped()
    breaker.succeeded(admit(breaker, 1.0), 1.0)
    breaker.succeeded(admit(breaker, 20.0), 20.0)
    for _ in range(5):
        breaker.failed(admit(breaker, 21.0), SERVER, 21.0)
    assert breaker.ready_in_s(21.0) == 1.0


def test_a_rate_limit_closes_without_a_mark() -> None:
    breaker = CircuitBreaker()
    permit = admit(breaker, 0.0)
    limited = classify(429, (), "", ((b"retry-after", b"2"),), 0.0)
    for _ in range(10):
        breaker.failed(permit, limited, 0.0)
    assert breaker.ready_in_s(0.0) == 2.0
    assert not breaker.degraded(0.0)
    assert not admit(breaker, 2.0).probe


def test_a_rate_limit_without_an_end_is_asked_about_ever_less_often() -> None:
    breaker, now, waits = CircuitBreaker(), 0.0, []
    for _ in range(7):
        breaker.failed(admit(breaker, now), failure(FailureKind.RATE_LIMITED), now)
        waits.append(breaker.ready_in_s(now))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 8, 8, 8]
    breaker.succeeded(admit(breaker, now), now)
    breaker.failed(admit(breaker, now), failure(FailureKind.RATE_LIMITED), now)
    assert breaker.ready_in_s(now) == 1.0


@pytest.mark.parametrize(
    "kind", [FailureKind.UNAUTHORIZED, FailureKind.QUOTA, FailureKind.NO_SUCH_MODEL]
)
def test_failures_that_people_must_fix_are_avoided_for_minutes_but_admitted(
    kind: FailureKind,
) -> None:
    breaker = CircuitBreaker()
    breaker.failed(admit(breaker, 0.0), failure(kind), 0.0)
    assert (breaker.avoided_for_s(0.0), breaker.ready_in_s(0.0)) == (300.0, 0.0)
    assert breaker.weight(0.0) == 0.0
    breaker.succeeded(admit(breaker, 1.0), 1.0)
    assert breaker.avoided_for_s(1.0) == 0.0


def test_only_a_rate_limit_counts_as_one() -> None:
    breaker = CircuitBreaker()
    breaker.failed(admit(breaker, 0.0), failure(FailureKind.RATE_LIMITED), 0.0)
    assert [breaker.limited(at) for at in (0.5, 1.5)] == [True, False]
    assert not tripped().limited(0.0)
