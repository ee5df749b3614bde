"""How long a question waits for the encoder: as long as a hit is worth."""

from __future__ import annotations

import pytest

from headstart.policies.gate import (
    FIRST_HIT_SHARE,
    LONGEST_S,
    MOST_KNOWN,
    SHORTEST_S,
    UNKNOWN_S,
    EncoderWaitLimit,
)


@pytest.mark.parametrize(
    ("first_byte_s", "expected_s"),
    [
        (0.002, SHORTEST_S),
        (0.3, 0.3 * FIRST_HIT_SHARE),
        (0.8, 0.8 * FIRST_HIT_SHARE),
        (30.0, LONGEST_S),
    ],
)
def test_the_wait_follows_the_time_of_fresh_answers(first_byte_s: float, expected_s: float) -> None:
    wait_limit = EncoderWaitLimit()
    for _ in range(20):
        wait_limit.learn("route", "model", first_byte_s)
    assert wait_limit.wait_s("route", "model") == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize(
    ("share", "expected_s"), [(0.0, SHORTEST_S), (0.5, 0.15), (0.8, 0.24), (1.0, LONGEST_S)]
)
def test_the_wait_follows_the_share_of_hits(share: float, expected_s: float) -> None:
    wait_limit = EncoderWaitLimit()
    for _ in range(20):
        wait_limit.learn("route", "model", 0.3)
    assert wait_limit.wait_s("route", "model", share) == pytest.approx(expected_s, rel=0.03)


def test_routes_and_models_are_learned_apart() -> None:
    wait_limit = EncoderWaitLimit()
    wait_limit.learn("fast", "model", 0.01)
    wait_limit.learn("slow", "model", 0.6)
    assert wait_limit.wait_s("fast", "model") == SHORTEST_S
    assert wait_limit.wait_s("slow", "model") > UNKNOWN_S
    assert wait_limit.wait_s("fast", "other") == UNKNOWN_S


def test_a_provider_that_became_slow_is_noticed() -> None:
    wait_limit = EncoderWaitLimit()
    for _ in range(20):
        wait_limit.learn("", "model", 0.08)
    before = wait_limit.wait_s("", "model")
    for _ in range(32):
        wait_limit.learn("", "model", 0.8)
    assert wait_limit.wait_s("", "model") > 5 * before


def test_one_slow_answer_does_not_make_it_patient() -> None:
    wait_limit = EncoderWaitLimit()
    for first_byte_s in (0.1, 0.1, 60.0, 0.1, 0.1):
        wait_limit.learn("", "model", first_byte_s)
    assert wait_limit.wait_s("", "model") < 0.03


def test_a_provider_that_became_fast_is_believed_after_some_answers() -> None:
    wait_limit = EncoderWaitLimit()
    for _ in range(500):
        wait_limit.learn("", "model", 0.8)
    for _ in range(100):
        wait_limit.learn("", "model", 0.08)
    assert wait_limit.wait_s("", "model") < 0.03


def test_the_route_that_was_asked_least_recently_is_forgotten() -> None:
    wait_limit = EncoderWaitLimit()
    for number in range(MOST_KNOWN + 1):
        wait_limit.learn("", f"model {number}", 0.8)
    assert wait_limit.wait_s("", "model 0") == UNKNOWN_S
    assert wait_limit.wait_s("", "model 1") > UNKNOWN_S
