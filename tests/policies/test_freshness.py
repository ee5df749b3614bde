"""Freshness: which questions age, how long answers live, and what age adds to the risk."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.freshness import (
    MOST_CHARACTERS,
    Lifetimes,
    QuestionClass,
    added_risk,
    hazard,
    question_class,
)

LIVE, DATED, STABLE = QuestionClass


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("What's the weather in Paris?", LIVE),
        ("Will it rain on Sunday?", LIVE),
        ("What time is it in Tokyo?", LIVE),
        ("time in tokyo", LIVE),
        ("What\u2019s the time?", LIVE),
        ("What is the price of bitcoin?", LIVE),
        ("Apple stock price", LIVE),
        ("exchange rate between usd and eur", LIVE),
        ("Who is winning?", LIVE),
        ("What is the final score?", LIVE),
        ("Is the Louvre open?", LIVE),
        ("Hello, is the shop open today?", LIVE),
        ("Is the museum open now?", LIVE),
        ("Is the blue one in stock?", LIVE),
        ("What is trending right now?", LIVE),
        ("Which song is currently playing", LIVE),
        ("Where is the parcel now?", LIVE),
        ("What is the traffic like", LIVE),
        ("What is the latest version of Python?", DATED),
        ("Who is the current prime minister of Japan?", DATED),
        ("What is on this week?", DATED),
        ("What happened yesterday?", DATED),
        ("What's today's menu?", DATED),
        ("Has the film come out?", DATED),
        ("When is the next election?", DATED),
        ("Who won the World Cup in 2014?", STABLE),
        ("What is an electric current?", STABLE),
        ("How do I score a goal in chess?", STABLE),
        ("What is open source?", STABLE),
        ("How long is the application window open?", STABLE),
        ("How is an exchange rate calculated?", STABLE),
        ("I dropped my card, what do I do now?", STABLE),
        ("What is the time frame for a transfer?", STABLE),
        ("What does nowhere mean?", STABLE),
        ("", STABLE),
    ],
)  # fmt: skip
def test_the_words_of_a_question_tell_how_fast_its_answer_ages(
    text: str, kind: QuestionClass
) -> None:
    assert question_class(text) is kind
    assert question_class(text.upper()) is kind


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_long_text_is_read_at_its_ends(at: str) -> None:
    padding = "a manual of many words. " * MOST_CHARACTERS
    question = "What is the weather?"
    text = f"{question} {padding}" if at == "start" else f"{padding} {question}"
    assert question_class(text) is LIVE
    assert question_class(padding + question + padding) is STABLE


@pytest.mark.parametrize(
    ("kind", "route_s", "ttl_s"),
    [
        (STABLE, None, 1000.0),
        (STABLE, 9000.0, 9000.0),
        (DATED, None, 100.0),
        (DATED, 50.0, 50.0),
        (LIVE, 9000.0, 5.0),
    ],
)
def test_the_shortest_life_counts_and_a_route_replaces_the_general_one(
    kind: QuestionClass, route_s: float | None, ttl_s: float
) -> None:
    lifetimes = Lifetimes(ttl_s=1000.0, by_class={LIVE: 5.0, DATED: 100.0})
    assert lifetimes.of(kind, route_s) == ttl_s


def test_without_bounds_an_answer_lives_for_ever() -> None:
    assert Lifetimes().of(LIVE) is None


def test_the_hazard_learns_from_what_changed() -> None:
    assert hazard(LIVE, 0, 0.0) > hazard(DATED, 0, 0.0) > hazard(STABLE, 0, 0.0) > 0.0
    assert hazard(STABLE, 3, 1e6) > hazard(STABLE, 2, 1e6)
    assert hazard(STABLE, 1000, 1e9) == pytest.approx(1e-6, rel=0.05)


ages = st.floats(min_value=0.0, max_value=1e9)


@given(st.floats(min_value=1e-12, max_value=1.0), ages, ages)
def test_risk_is_a_probability_that_grows_with_age(rate: float, age: float, more: float) -> None:
    risk = added_risk(rate, age)
    assert 0.0 <= risk <= 1.0
    assert added_risk(rate, age + more) >= risk
    survives = (1 - risk) * (1 - added_risk(rate, more))
    assert survives == pytest.approx(exp(-rate * (age + more)), abs=1e-9)


def test_after_the_half_life_the_risk_is_half() -> None:
    assert added_risk(0.01, log(2) / 0.01) == pytest.approx(0.5)
    assert added_risk(0.01, -5.0) == 0.0
