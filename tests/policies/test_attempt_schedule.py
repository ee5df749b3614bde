"""Which attempt starts when: a table of events and of the attempts that they start."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from headstart.attempts import AttemptRole, RoutingEstimate
from headstart.policies.routing.failures import Failure, FailureKind, failure
from headstart.policies.routing.schedule import (
    ANY_WAIT,
    LEAST_SAMPLES,
    MOST_PROVIDER_REFUSALS,
    MOST_WAITED,
    AttemptRules,
    AttemptSchedule,
    join_terms,
    twin_wait_s,
)

SERVER = failure(FailureKind.SERVER)
SILENT = failure(FailureKind.SILENT)
LIMITED = msgspec.structs.replace(
    failure(FailureKind.RATE_LIMITED), retry_after_s=2.0, pauses_s=2.0
)
TURNED_AWAY = msgspec.structs.replace(failure(FailureKind.OVERLOADED), retry_after_s=3.0)
TOO_LONG = failure(FailureKind.CONTEXT_TOO_LONG)
BAD = failure(FailureKind.BAD_REQUEST)


def make(
    count: int,
    rules: AttemptRules | None = None,
    *,
    retries: int = 100,
    hedges: int = 100,
    deadline: float | None = None,
    contexts: dict[int, int | None] | None = None,
    told: list[bool] | None = None,
) -> AttemptSchedule:
    left = {"retries": retries, "hedges": hedges}

    def spend(what: str) -> bool:
        left[what] -= 1
        return left[what] >= 0

    def may_retry(last: bool) -> bool:
        if told is not None:
            told.append(last)
        return spend("retries")

    return AttemptSchedule(
        range(count),
        rules or AttemptRules(),
        0.0,
        may_retry=may_retry,
        may_hedge=lambda: spend("hedges"),
        draw=lambda: 0.0,
        deadline=deadline,
        contexts=contexts or {},
    )


def due(starts: AttemptSchedule, now: float) -> list[tuple[int, str]]:
    return [(each.member, each.role.value) for each in starts.due(now)]


def test_a_single_member_is_asked_once_when_nothing_fails() -> None:
    starts = make(1)
    assert due(starts, 0.0) == [(0, "first")]
    assert starts.wakes_at is None
    assert not starts.over
    assert not starts.side_by_side


def test_a_failed_member_is_asked_again_before_the_next_one_is() -> None:
    starts = make(2)
    due(starts, 0.0)
    starts.failed(0, SERVER, 1.0)
    assert due(starts, 1.0) == [(0, "retry")]
    starts.failed(0, SERVER, 2.0)
    assert due(starts, 2.0) == [(1, "fallback")]
    starts.failed(1, SERVER, 3.0)
    assert due(starts, 3.0) == [(1, "retry")]
    starts.failed(1, SERVER, 4.0)
    assert starts.over


def test_no_retry_without_a_budget() -> None:
    starts = make(2, retries=0)
    due(starts, 0.0)
    starts.failed(0, SERVER, 1.0)
    assert due(starts, 1.0) == [(1, "fallback")]


def test_a_silent_member_is_tried_once() -> None:
    starts = make(2)
    due(starts, 0.0)
    starts.failed(0, SILENT, 15.0)
    assert due(starts, 15.0) == [(1, "fallback")]
    starts.failed(1, SILENT, 30.0)
    assert starts.over


def test_a_member_that_asks_for_a_wait_is_waited_for_only_if_no_other_is_left() -> None:
    starts = make(2)
    due(starts, 0.0)
    starts.failed(0, LIMITED, 1.0)
    assert due(starts, 1.0) == [(1, "fallback")]
    starts.failed(1, SILENT, 1.5)
    assert starts.wakes_at == pytest.approx(3.0)
    assert due(starts, 2.9) == []
    assert due(starts, 3.0) == [(0, "retry")]


def test_a_wait_that_does_not_fit_the_deadline_is_not_begun() -> None:
    starts = make(1, deadline=3.0)
    due(starts, 0.0)
    starts.failed(0, LIMITED, 0.0)
    assert starts.over


def test_a_member_whose_limit_is_used_up_is_queued_for_as_if_for_the_first_time() -> None:
    starts = make(1, AttemptRules(retries=0), retries=0)
    due(starts, 0.0)
    starts.failed(0, TURNED_AWAY, 0.0, asked=False)
    (start,) = starts.due(0.0)
    assert start == (0, "first", False, 60.0)
    starts.failed(0, TURNED_AWAY, 40.0, asked=False)
    assert due(starts, 40.0) == [(0, "first")]
    starts.failed(0, TURNED_AWAY, 80.0, asked=False)
    assert starts.over


def test_a_refused_call_queues_again_without_a_budget_while_others_are_answered() -> None:
    starts = make(1, AttemptRules(retries=0), retries=0)
    due(starts, 0.0)
    for number in range(MOST_PROVIDER_REFUSALS):
        starts.failed(0, LIMITED, float(number), queues=True)
        (start,) = starts.due(float(number))
        assert start == (0, "retry", False, 60.0), "a minute in all"
    starts.failed(0, LIMITED, 20.0, queues=True)
    assert starts.over


def test_a_call_that_queued_is_not_retried_when_nobody_is_answered() -> None:
    starts = make(1)
    due(starts, 0.0)
    starts.failed(0, TURNED_AWAY, 0.0, asked=False)
    assert due(starts, 0.0) == [(0, "first")]
    starts.failed(0, LIMITED, 2.0)
    assert starts.over
    assert starts.outlasts_sdk(2.0)
    assert not starts.outlasts_sdk(1.0), "an SDK would have tried again later"


def test_a_refused_call_goes_to_another_member_first() -> None:
    starts = make(2, AttemptRules(retries=0), retries=0)
    due(starts, 0.0)
    starts.failed(0, LIMITED, 1.0, queues=True)
    assert due(starts, 1.0) == [(1, "fallback")]
    starts.failed(1, SILENT, 2.0)
    assert due(starts, 2.0) == [(0, "retry")]


def test_a_call_queues_for_half_of_the_time_that_is_left() -> None:
    starts = make(1, deadline=20.0)
    due(starts, 0.0)
    starts.failed(0, TURNED_AWAY, 0.0, asked=False)
    (start,) = starts.due(0.0)
    assert start.queues_until == 10.0


def test_a_failing_member_is_asked_anyway_if_no_other_is_left() -> None:
    starts = make(2)
    due(starts, 0.0)
    starts.avoided(0, 0.0)
    assert due(starts, 0.0) == [(1, "fallback")]
    starts.failed(1, SERVER, 1.0)
    assert due(starts, 1.0) == [(1, "retry")]
    starts.failed(1, SERVER, 2.0)
    assert starts.due(2.0) == [(0, AttemptRole.FIRST, True, None)]
    starts.avoided(0, 2.0)
    assert starts.over


def test_the_budget_s_last_retries_are_for_those_who_answer_these_days() -> None:
    told: list[bool] = []
    starts = make(3, retries=0, told=told)
    assert due(starts, 0.0) == [(0, "first")]
    starts.failed(0, SERVER, 0.0)
    assert due(starts, 0.0) == [(1, "fallback")]
    starts.avoided(1, 0.0)
    assert due(starts, 0.0) == [(2, "fallback")]
    starts.avoided(2, 0.0)
    assert due(starts, 0.0) == [(1, "first")]
    starts.failed(1, SERVER, 0.0)
    assert due(starts, 0.0) == [(2, "first")]
    starts.failed(2, SERVER, 0.0)
    assert told == [False, True]
    assert starts.over


def test_the_callers_own_fault_ends_it_at_once() -> None:
    starts = make(3)
    due(starts, 0.0)
    starts.failed(0, BAD, 1.0)
    assert starts.over


@pytest.mark.parametrize("failed", [SERVER, SILENT])
def test_after_the_callers_own_fault_a_race_starts_no_more_attempts(failed: Failure) -> None:
    starts = make(3, AttemptRules(at_once=3))
    due(starts, 0.0)
    starts.avoided(2, 0.0)
    starts.failed(0, BAD, 0.1)
    assert not starts.over
    starts.failed(1, failed, 0.2)
    assert due(starts, 0.2) == []
    assert starts.over


def test_a_member_that_is_avoided_after_the_callers_own_fault_is_not_asked() -> None:
    starts = make(2, AttemptRules(at_once=2))
    due(starts, 0.0)
    starts.failed(0, BAD, 0.1)
    starts.avoided(1, 0.1)
    assert due(starts, 0.1) == []
    assert starts.over


def test_only_larger_contexts_help_a_prompt_that_is_too_long() -> None:
    starts = make(4, contexts={0: 100, 1: 100, 2: 200, 3: None})
    due(starts, 0.0)
    starts.failed(0, TOO_LONG, 1.0)
    assert due(starts, 1.0) == [(2, "fallback")]
    starts.failed(2, TOO_LONG, 2.0)
    assert due(starts, 2.0) == [(3, "fallback")]


def test_a_race_starts_together_and_retries_when_all_have_failed() -> None:
    starts = make(3, AttemptRules(at_once=3))
    assert starts.side_by_side
    assert due(starts, 0.0) == [(0, "first"), (1, "race"), (2, "race")]
    starts.failed(1, SERVER, 1.0)
    starts.failed(0, SILENT, 1.0)
    assert due(starts, 1.0) == []
    assert not starts.over
    starts.failed(2, SILENT, 2.0)
    assert due(starts, 2.0) == [(1, "retry")]


def test_a_hedge_starts_late_and_only_by_budget() -> None:
    starts = make(2, AttemptRules(hedge_after_s=0.5))
    due(starts, 0.0)
    assert starts.wakes_at == 0.5
    assert due(starts, 0.5) == [(1, "hedge")]
    starts = make(2, AttemptRules(hedge_after_s=0.5), hedges=0)
    due(starts, 0.0)
    assert due(starts, 0.5) == []
    assert starts.wakes_at is None
    starts.failed(0, SILENT, 1.0)
    assert due(starts, 1.0) == [(1, "fallback")]


def test_a_failure_before_the_hedge_is_a_fallback_that_costs_no_budget() -> None:
    starts = make(3, AttemptRules(hedge_after_s=0.5, retries=0), hedges=0)
    due(starts, 0.0)
    starts.failed(0, SERVER, 0.1)
    assert due(starts, 0.1) == [(1, "fallback")]
    assert due(starts, 0.5) == []


def test_every_run_of_failures_ends_and_nobody_runs_twice_at_once() -> None:
    draw = random.Random(4)
    kinds: list[Failure] = [SERVER, SILENT, LIMITED, TOO_LONG, failure(FailureKind.CUT)]
    for _ in range(2000):
        count, retries = draw.randint(1, 4), draw.randint(0, 3)
        hedge = draw.choice((None, draw.random()))
        starts = make(count, AttemptRules(retries, draw.randint(1, count), hedge))
        now, running, calls, tries = 0.0, set[int](), 0, 0
        while not starts.over:
            for start in starts.due(now):
                assert start.member not in running
                assert (start.role is AttemptRole.RETRY) <= (tries > 0)
                running.add(start.member)
                calls += 1
            if running and (starts.wakes_at is None or draw.random() < 0.7):
                member = draw.choice(sorted(running))
                running.remove(member)
                tries += 1
                asked = draw.random() < 0.8
                starts.failed(
                    member, draw.choice(kinds) if asked else TURNED_AWAY, now, asked=asked
                )
            elif starts.wakes_at is not None:
                now = max(now, starts.wakes_at)
        assert calls <= count * (1 + retries + 3)


OWN = RoutingEstimate(
    name="sim", samples=LEAST_SAMPLES, ttft_s=1.0, tokens_per_s=50.0, output_tokens=200.0
)
"""The first token comes after 1 s, and the end after 5 s."""


@pytest.mark.parametrize(
    ("elapsed_s", "waits"),
    [(0.0, False), (3.9, False), (4.0, True), (5.0, True), (6.0, True), (6.1, False), (60, False)],
)
def test_a_stream_waits_for_a_whole_answer_near_its_expected_end(
    elapsed_s: float, waits: bool
) -> None:
    """Nobody knows when an answer will come that is late by more than a first token takes."""
    expected = MOST_WAITED * 1.0 if waits else None
    assert twin_wait_s(join_terms("sooner", OWN), elapsed_s) == expected


@pytest.mark.parametrize(
    "own",
    [
        None,
        RoutingEstimate(name="sim"),
        msgspec.structs.replace(OWN, samples=LEAST_SAMPLES - 1),
        msgspec.structs.replace(OWN, tokens_per_s=None),
        msgspec.structs.replace(OWN, ttft_s=None),
    ],
)
def test_a_stream_of_which_little_is_known_makes_its_own_call(own: RoutingEstimate | None) -> None:
    assert join_terms("sooner", own) is None
    assert twin_wait_s(None, 5.0) is None


def test_a_stream_that_would_be_refused_waits_as_one_that_always_shall() -> None:
    closed = msgspec.structs.replace(OWN, ready=False, ready_in_s=30.0)
    assert join_terms("sooner", closed) == join_terms("always", None) == ANY_WAIT
    assert twin_wait_s(ANY_WAIT, 1000.0) == math.inf
    assert join_terms("never", closed) is None
