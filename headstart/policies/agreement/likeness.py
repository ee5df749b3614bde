"""How alike two free texts are, as the features of a logistic regression."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.policies.agreement.wording import Wording

FEATURES = (
    "bias",
    "cosine",
    "cover_least",
    "cover_most",
    "nothing_novel",
    "jaccard",
    "opening_cover",
    "key_cover",
    "no_keys",
    "number_conflict",
    "number_match",
    "polarity_conflict",
    "negation_gap",
    "length_ratio",
)
"""Names of the features, in order. ``key`` words are names and numbers not in the question."""


def compare_words(
    a: Wording, b: Wording, given: frozenset[str], *, cosine: float
) -> tuple[float, ...]:
    """Return ``FEATURES`` of two texts; ``given`` are the words that the question gave."""
    novel_a, novel_b = a.content - given, b.content - given
    shared = len(novel_a & novel_b)
    cover_a, cover_b = _share(shared, len(novel_a)), _share(shared, len(novel_b))
    keys_a, keys_b = (a.names | a.numbers) - given, (b.names | b.numbers) - given
    numbers_a, numbers_b = a.numbers - given, b.numbers - given
    both_numbers = bool(numbers_a and numbers_b)
    return (
        1.0,
        cosine,
        min(cover_a, cover_b),
        max(cover_a, cover_b),
        float(not (novel_a and novel_b)),
        _share(len(a.content & b.content), len(a.content | b.content)),
        max(
            _cover(a.opening - given, novel_b),
            _cover(b.opening - given, novel_a),
        ),
        max(_cover(keys_a, novel_b), _cover(keys_b, novel_a)),
        float(not (keys_a and keys_b)),
        float(both_numbers and not numbers_a & numbers_b),
        float(both_numbers and bool(numbers_a & numbers_b)),
        float(a.polarity * b.polarity < 0),
        float((a.negations > 0) != (b.negations > 0)),
        abs(log((1 + a.length) / (1 + b.length))),
    )


def _cover(words: frozenset[str], others: frozenset[str]) -> float:
    return _share(len(words & others), len(words))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
