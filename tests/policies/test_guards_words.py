"""Words and stems: what every guard reads. All examples are invented."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headstart.decisions import Encoding
from headstart.policies.guards.facts import code_parts, dates
from headstart.policies.guards.negation import negations, negations_differ
from headstart.policies.guards.table import GUARDS, parse_prompt
from headstart.policies.guards.words import Parse, languages, split_words, stem

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.settings import GuardName


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
