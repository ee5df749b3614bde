"""Freshness: which questions age, how long answers live, and what age adds to the risk."""

from __future__ import annotations

import pytest

from headstart.policies.freshness import (
    MOST_CHARACTERS,
    Lifetimes,
    QuestionClass,
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
