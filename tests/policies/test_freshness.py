"""Freshness: which questions age, how long answers live, and what age adds to the risk."""

from __future__ import annotations

import pytest

from headstart.policies.freshness import (
    MOST_CHARACTERS,
    Lifetime,
    Lifetimes,
    QuestionClass,
    is_from_cache,
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


LIVE_WORDINGS = (
    "just now|where are you now?|at this moment|currently|what time is it|what day is today"
    "|what's today's date|current time|time now|what's the time|weather|forecast"
    "|temperature outside|will it snow|is it be windy|live scores|match score|score of the big game"
    "|who's leading|who won tonight|gold prices|price of|stocks doing|stock worth|trading at"
    "|selling for|mortgage rates now|today's rate from|todays news|today's headlines|breaking news"
    "|news now|traffic on|train status|open yet|are you open?|is it open today|in stock"
    "|any seats left|many rooms available|any tables free"
)
DATED_WORDINGS = (
    "today's|todays|tonight|tonights|tomorrow|tomorrow's|yesterday|this weekend|next month"
    "|last friday|past year|coming season's|latest|newest|most recent|recently|up to date"
    "|up-to-date|so far|current ceo|current tax rates|news|headlines|upcoming|nowadays|these days"
    "|as of 2031|has the film been released|have they come out|when will the film be released"
    "|when is next"
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((text, LIVE) for text in LIVE_WORDINGS.split("|")),
        *((text, DATED) for text in DATED_WORDINGS.split("|")),
    ],
)
@pytest.mark.parametrize("around", ["{}", "Well, {}", "\u2026, {}"])
def test_each_wording_is_known_beside_any_signs(
    text: str, kind: QuestionClass, around: str
) -> None:
    assert question_class(around.format(text)) is kind


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_long_text_is_read_at_its_ends(at: str) -> None:
    padding = "a manual of many words. " * MOST_CHARACTERS
    question = "What is the weather?"
    text = f"{question} {padding}" if at == "start" else f"{padding} {question}"
    assert question_class(text) is LIVE
    assert question_class(padding + question + padding) is STABLE


LASTING, FRESH, NOW = "What is a bridge?", "What is the latest bridge?", "What is the weather?"


@pytest.mark.parametrize(
    ("question", "part", "route_s", "lifetime"),
    [
        (LASTING, "", None, Lifetime(STABLE, 1000.0)),
        (LASTING, "", 9000.0, Lifetime(STABLE, 9000.0)),
        (FRESH, "", None, Lifetime(DATED, 100.0)),
        (FRESH, "", 50.0, Lifetime(DATED, 50.0)),
        (NOW, "", 9000.0, Lifetime(LIVE, 5.0)),
        (LASTING, NOW, None, Lifetime(LIVE, 5.0)),
        (NOW, FRESH, None, Lifetime(LIVE, 5.0)),
    ],
)
def test_the_shortest_life_counts_and_a_route_replaces_the_general_one(
    question: str, part: str, route_s: float | None, lifetime: Lifetime
) -> None:
    lifetimes = Lifetimes(ttl_s=1000.0, by_class={LIVE: 5.0, DATED: 100.0})
    assert lifetimes.of(question, route_s, part) == lifetime


def test_without_bounds_an_answer_lives_for_ever() -> None:
    assert Lifetimes().of(NOW) == Lifetime(LIVE, None)


@pytest.mark.parametrize(
    ("name", "value", "cached"),
    [
        (b"cache-status", b"headstart; hit; ttl=604799; detail=semantic", True),
        (b"cache-status", b"headstart; fwd=miss; detail=empty-partition; stored", False),
        (b"x-cache", b"HIT", True),
        (b"x-cache", b"Hit from cloudfront", True),
        (b"x-cache", b"Miss from cloudfront", False),
        (b"cf-cache-status", b"DYNAMIC", False),
        (b"cf-aig-cache-status", b"HIT", True),
        (b"cf-aig-cache-status", b"MISS", False),
        (b"x-portkey-cache-status", b"SEMANTIC HIT", True),
        (b"x-portkey-cache-status", b"DISABLED", False),
        (b"x-cache", b"TCP_HIT from edge.example", True),
        (b"x-cache", b"TCP_MISS from edge.example", False),
        (b"helicone-cache", b"HIT", True),
        (b"x-litellm-cache-key", b"0f3a", True),
        (b"x-litellm-cache-hit", b"True", True),
        (b"x-litellm-cache-hit", b"False", False),
        (b"x-litellm-version", b"1.80.0", False),
    ],
)
def test_other_caches_say_that_they_answered(name: bytes, value: bytes, *, cached: bool) -> None:
    headers = ((b"content-type", b"application/json"), (name, value))
    assert is_from_cache(headers) is cached
