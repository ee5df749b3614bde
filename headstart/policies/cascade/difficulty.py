"""What a prompt alone tells: how much better a strong model is expected to answer it.

A linear regression on surface features, fitted to *strong right minus weak right*, not to *weak
wrong*: what both models get wrong is difficult, too, but escalating it buys nothing. Fitted and
measured by ``benchmarks/cascade.py``; ``docs/cascade.md`` has the numbers.
"""

from __future__ import annotations

import math
import re

_READ = 4000
"""Characters of a prompt that are read."""
_WORD = re.compile(r"[A-Za-z']+")
_NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
_BROKEN_NUMBER = re.compile(r"\d[./]\d")
_SENTENCE = re.compile(r"[.!?](?:\s|$)")
_SYMBOL = re.compile(r"[=+*^\\<>_{}|]")
_NAME = re.compile(r"\b[A-Z][a-z]+")
_NEGATIONS = frozenset(("not", "except", "never", "without", "neither", "nor", "unless"))
_QUANTITIES = frozenset(
    (
        "than", "more", "less", "fewer", "twice", "half", "third", "quarter", "double", "triple",
        "times", "ratio", "percent", "remaining", "rest", "left", "each", "every", "per", "total",
        "difference", "average",
    )
)  # fmt: skip
_STEPS = frozenset(
    (
        "then", "after", "before", "if", "when", "first", "next", "finally", "because",
        "therefore", "while", "until", "suppose", "given", "assume", "prove", "derive", "explain",
        "calculate", "compute", "find", "determine", "how",
    )
)  # fmt: skip
_FRACTIONS = frozenset(("half", "third", "fourth", "quarter", "fifth", "twice", "thrice"))
_LONG_WORD = 10

FEATURES = (
    "length",
    "thousands of characters",
    "words in a sentence",
    "sentences",
    "numbers",
    "numbers a word",
    "broken numbers",
    "quantities",
    "fractions",
    "steps",
    "negations",
    "questions",
    "lines",
    "word length",
    "distinct words",
    "long words",
    "names",
    "symbols",
)

_WEIGHTS = (
    0.1161, -0.1976, -0.0028, 0.0304, 0.0324, -0.2163, -0.1106, 0.0204, 0.0691,
    0.0058, 0.0305, -0.0332, -0.0380, -0.0062, -0.0686, -0.1134, 0.3567, -0.0041,
)  # fmt: skip
_CONSTANT = -0.4330


def expected_gain(text: str) -> float:
    """Return how much more often a strong model is expected to be right than a weak one.

    A share, clipped to [0, 1]. What it means for two given models is for a Calibration to learn.
    """
    terms = zip(_WEIGHTS, read_features(text), strict=True)
    return min(1.0, max(0.0, _CONSTANT + sum(weight * value for weight, value in terms)))


def read_features(text: str) -> tuple[float, ...]:
    """Return the FEATURES of a prompt. Linear in its length, of which the first part is read."""
    text = text[:_READ]
    words = _WORD.findall(text)
    lower = [word.lower() for word in words]
    count = max(1, len(words))
    sentences = len(_SENTENCE.findall(text)) + 1
    numbers = len(_NUMBER.findall(text))
    return (
        math.log1p(len(text)),
        len(text) / 1000,
        math.log(count / sentences),
        math.log1p(sentences),
        math.log1p(numbers),
        min(1.0, numbers / count),
        math.log1p(len(_BROKEN_NUMBER.findall(text))),
        _capped(lower, _QUANTITIES),
        _capped(lower, _FRACTIONS),
        _capped(lower, _STEPS),
        _capped(lower, _NEGATIONS),
        min(4.0, text.count("?")),
        math.log1p(text.count("\n")),
        sum(map(len, words)) / count,
        len(set(lower)) / count,
        sum(len(word) >= _LONG_WORD for word in words) / count,
        len(_NAME.findall(text)) / count,
        math.log1p(len(_SYMBOL.findall(text))),
    )


def _capped(words: list[str], vocabulary: frozenset[str]) -> float:
    return min(4.0, sum(word in vocabulary for word in words))
