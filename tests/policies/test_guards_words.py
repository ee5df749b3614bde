"""Words and stems: what every guard reads. All examples are invented."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headstart.policies.guards.facts import dates
from headstart.policies.guards.negation import negations, negations_differ
from headstart.policies.guards.words import Parse, languages, split_words, stem

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("C++ or C#?", ["c++", "or", "c#"]),
        ("Is .NET 8.0.1 out?", ["is", ".net", "8.0.1", "out"]),
        ("main.py, my_var.", ["main.py", "my_var"]),
        ("It\u2019s full-time", ["it's", "full", "time"]),
        ("$1,250.50 (5%)", ["$", "1,250.50", "5", "%"]),
        ("1,2 and .5", ["1", "2", "and", ".5"]),
        ("L'hôtel, c'est où ?", ["l'", "hôtel", "c'", "est", "où"]),
        ("Dov'è dell'acqua?", ["dov'", "è", "dell'", "acqua"]),
        ("Don't, I'm at O'Neill", ["don't", "i'm", "at", "o'neill"]),
    ],
)
def test_names_versions_and_amounts_stay_whole(text: str, tokens: list[str]) -> None:
    assert [word.text for word in split_words(text)] == tokens


@pytest.mark.parametrize(
    "forms",
    [
        ("cancel", "cancels", "cancelled", "cancelling"),
        ("create", "creates", "created", "creating"),
        ("call", "calls", "called", "calling"),
        ("apply", "applies", "applied", "applying"),
        ("match", "matches", "matched"),
        ("quick", "quickly"),
        ("buy", "bought", "buying"),
        ("class", "classes"),
        ("add", "adds", "added", "adding"),
        ("app", "apps"),
    ],
)
def test_forms_of_a_word_have_one_stem(forms: tuple[str, ...]) -> None:
    assert len({stem(form) for form in forms}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("bus", "bush"), ("pass", "past"), ("sing", "s"), ("red", "r"), ("niger", "nigeria")],
)
def test_different_words_have_different_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)


@pytest.mark.parametrize(
    "text",
    [
        "Wo ist der Bahnhof?",
        "Où est l'hôtel ?",
        "¿Dónde está el hotel?",
        "Dov'è l'albergo?",
        "Onde fica a estação?",
        "Waar is het station?",
        "Gdzie jest dworzec?",
        "Var är stationen?",
    ],
)
def test_function_words_show_another_language(text: str) -> None:
    assert languages(split_words(text))[1]


@pytest.mark.parametrize(
    "text",
    [
        "Where is the hotel?",
        "hotel",
        "Is Las Vegas far from Los Angeles?",
        "What is the war in Lo Manthang about?",
        "Set a timer for ten minutes",
    ],
)
def test_english_is_no_other_language(text: str) -> None:
    assert not languages(split_words(text))[1]


def least_s(run: Callable[[], object]) -> float:
    took = []
    for _ in range(3):
        began = time.process_time()
        run()
        took.append(time.process_time() - began)
    return min(took)


@pytest.mark.parametrize(
    ("read", "text"), [(negations, "no "), (dates, "3 march ")], ids=["negations", "dates"]
)
def test_long_lists_are_read_in_linear_time(read: Callable[..., object], text: str) -> None:
    few, many = split_words(text * 500), split_words(text * 4000)
    assert least_s(lambda: read(many)) < 30 * least_s(lambda: read(few))


def test_long_prompts_are_compared_in_linear_time() -> None:
    few, many = (
        Parse(stems=("red", "tea") * count, content=frozenset(), vectors=b"")
        for count in (1000, 8000)
    )
    assert least_s(lambda: negations_differ(many, many)) < 30 * least_s(
        lambda: negations_differ(few, few)
    )
