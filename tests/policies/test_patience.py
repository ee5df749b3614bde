"""How long a question waits for the encoder: as long as a hit is worth."""

from __future__ import annotations

import pytest

from headstart.policies.gate import (
    FIRST_HIT_SHARE,
    LONGEST_S,
    MOST_KNOWN,
    SHORTEST_S,
    UNKNOWN_S,
    LookupPatience,
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
    patience = LookupPatience()
    for _ in range(20):
        patience.learn("route", "model", first_byte_s)
    assert patience.wait_s("route", "model") == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize(
    ("share", "expected_s"), [(0.0, SHORTEST_S), (0.5, 0.15), (0.8, 0.24), (1.0, LONGEST_S)]
)
def test_the_wait_follows_the_share_of_hits(share: float, expected_s: float) -> None:
    patience = LookupPatience()
    for _ in range(20):
        patience.learn("route", "model", 0.3)
    assert patience.wait_s("route", "model", share) == pytest.approx(expected_s, rel=0.03)


def test_routes_and_models_are_learned_apart() -> None:
    patience = LookupPatience()
    patience.learn("fast", "model", 0.01)
    patience.learn("slow", "model", 0.6)
    assert patience.wait_s("fast", "model") == SHORTEST_S
    assert patience.wait_s("slow", "model") > UNKNOWN_S
    assert patience.wait_s("fast", "other") == UNKNOWN_S


def test_a_provider_that_became_slow_is_noticed() -> None:
    patience = LookupPatience()
    for _ in range(20):
        patience.learn("", "model", 0.08)
    before = patience.wait_s("", "model")
    for _ in range(32):
        patience.learn("", "model", 0.8)
    assert patience.wait_s("", "model") > 5 * before


def test_one_slow_answer_does_not_make_it_patient() -> None:
    patience = LookupPatience()
    for first_byte_s in (0.1, 0.1, 60.0, 0.1, 0.1):
        patience.learn("", "model", first_byte_s)
    assert patience.wait_s("", "model") < 0.03


def test_a_provider_that_became_fast_is_believed_after_some_answers() -> None:
    patience = LookupPatience()
    for _ in range(500):
        patience.learn("", "model", 0.8)
    for _ in range(100):
        patience.learn("", "model", 0.08)
    assert patience.wait_s("", "model") < 0.03


def test_the_route_that_was_asked_least_recently_is_forgotten() -> None:
    patience = LookupPatience()
    for number in range(MOST_KNOWN + 1):
        patience.learn("", f"model {number}", 0.8)
    assert patience.wait_s("", "model 0") == UNKNOWN_S
    assert patience.wait_s("", "model 1") > UNKNOWN_S
