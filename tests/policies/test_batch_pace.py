"""The number of calls at the same time finds the limit of a provider."""

from __future__ import annotations

import heapq

import pytest

from headstart.policies.routing.schedule import (
    FIRST_LIMIT,
    LEAST_ANSWERS,
    LONGEST_PAUSE_S,
    MOST_REFUSED_ROUNDS,
    BatchPace,
    pace_after_answer,
    pace_after_late_answer,
    pace_after_refusal,
)


def after_answers(pace: BatchPace, count: int, took_s: float = 1.0, now: float = 0.0) -> BatchPace:
    for _ in range(count):
        pace = pace_after_answer(pace, began=now, took_s=took_s, in_flight=pace.calls, now=now)
    return pace


def test_the_limit_doubles_with_each_round_until_the_first_refusal() -> None:
    pace = after_answers(BatchPace(most=100), LEAST_ANSWERS)
    assert pace.calls == 2 * FIRST_LIMIT
    pace = pace_after_refusal(after_answers(pace, LEAST_ANSWERS), began=1.0, wait_s=None, now=1.0)
    assert pace.calls == 2 * FIRST_LIMIT
    assert after_answers(pace, LEAST_ANSWERS, now=2.0).calls == 2 * FIRST_LIMIT + 1


def test_the_limit_never_exceeds_the_most() -> None:
    assert after_answers(BatchPace(most=6), 50).calls == 6


def test_an_answer_beside_few_calls_raises_nothing() -> None:
    pace = BatchPace(most=100)
    for _ in range(LEAST_ANSWERS):
        pace = pace_after_answer(pace, began=0.0, took_s=1.0, in_flight=2, now=0.0)
    assert pace.calls == FIRST_LIMIT


def test_refusals_of_one_round_lower_the_limit_once() -> None:
    pace = after_answers(BatchPace(most=100), 2 * LEAST_ANSWERS)
    first = pace_after_refusal(pace, began=1.0, wait_s=None, now=2.0)
    second = pace_after_refusal(first, began=1.5, wait_s=None, now=2.1)
    assert first.calls == second.calls == pace.calls // 2
    assert pace_after_refusal(second, began=4.0, wait_s=None, now=5.0).calls == pace.calls // 4


def test_the_pause_is_the_one_that_the_provider_names() -> None:
    pace = pace_after_refusal(BatchPace(most=100), began=1.0, wait_s=7.5, now=2.0)
    assert pace.resumes_at == 9.5


def test_pauses_double_until_a_call_is_answered() -> None:
    pace, now = BatchPace(most=100), 1.0
    pauses: list[float] = []
    for _ in range(8):
        pace = pace_after_refusal(pace, began=now, wait_s=None, now=now)
        pauses.append(pace.resumes_at - now)
        now = pace.resumes_at + 1.0
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    pace = pace_after_refusal(after_answers(pace, 1, now=now), began=now, wait_s=None, now=now)
    assert pace.resumes_at - now == 1


def test_a_provider_that_refuses_everything_ends_the_batch() -> None:
    pace = BatchPace(most=100)
    for second in range(MOST_REFUSED_ROUNDS):
        assert not pace.gives_up
        pace = pace_after_refusal(pace, began=second, wait_s=0.0, now=second)
    assert pace.gives_up
    assert not after_answers(pace, 1).gives_up


def test_a_call_that_had_to_be_made_twice_lowers_the_limit_without_a_pause() -> None:
    pace = after_answers(BatchPace(most=100), 2 * LEAST_ANSWERS)
    lowered = pace_after_late_answer(pace, began=1.0, now=2.0)
    assert lowered.calls == pace.calls // 2
    assert lowered.resumes_at == pace.resumes_at


def test_slower_answers_lower_the_limit() -> None:
    pace = after_answers(BatchPace(most=32), 100)
    slower = after_answers(pace, 64, took_s=3.0, now=5.0)
    assert pace.calls == 32
    assert slower.calls < 32
    assert not slower.searching


def test_answers_that_become_longer_slowly_lower_nothing() -> None:
    pace = BatchPace(most=16)
    for part in range(60):
        pace = after_answers(pace, 16, took_s=1.0 + part * 0.01, now=float(part))
    assert pace.calls == 16


def test_requests_that_take_longer_by_themselves_do_not_keep_the_limit_low() -> None:
    pace = after_answers(BatchPace(most=32), 100)
    for round in range(40):
        pace = after_answers(pace, 40, took_s=5.0, now=10.0 + round)
    assert pace.calls == 32


def play(pace: BatchPace, seconds: float, slots: int, *, refuses: bool) -> tuple[BatchPace, float]:
    """Play calls of one second on a provider with so many slots, on a clock of its own.

    Beyond the slots it ``refuses``, or queues. Return the last pace, and the mean of the used
    slots in the second half.
    """
    running: list[tuple[float, float, bool]] = []
    now, used, served, begun = 0.0, [0.0] * slots, 0, 0
    while now < seconds:
        while len(running) < pace.calls and pace.resumes_at <= now:
            begun += 1
            accepted = sum(ok for *_, ok in running) < slots
            if refuses:
                ends = now + (1.0 if accepted else 0.05)
            else:
                accepted, ends = True, max(now, heapq.heappop(used)) + 1.0
                heapq.heappush(used, ends)
            heapq.heappush(running, (ends, now, accepted))
        if not running:
            now = pace.resumes_at
            continue
        in_flight = len(running)
        now, began, accepted = heapq.heappop(running)
        if accepted:
            served += now > seconds / 2
            took_s = now - began
            pace = pace_after_answer(pace, began=began, took_s=took_s, in_flight=in_flight, now=now)
        else:
            pace = pace_after_refusal(pace, began=began, wait_s=None, now=now)
    return pace, served / (seconds / 2)


@pytest.mark.parametrize("slots", [5, 20, 60])
def test_the_limit_settles_below_that_of_a_provider_that_refuses(slots: int) -> None:
    pace, used = play(BatchPace(most=256), 800.0, slots, refuses=True)
    assert slots * 0.4 <= pace.calls <= slots + 2
    assert used >= 0.65 * slots


@pytest.mark.parametrize("slots", [5, 20, 60])
def test_the_limit_settles_near_that_of_a_provider_that_queues(slots: int) -> None:
    pace, used = play(BatchPace(most=256), 800.0, slots, refuses=False)
    assert slots * 0.7 <= pace.calls <= slots * 3
    assert used >= 0.85 * slots
