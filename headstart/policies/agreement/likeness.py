"""How alike two free texts are, as the features of a logistic regression."""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.agreement.wording import Wording

FEATURES = (
    "bias",
    "cosine",
    "cosine above 0.8",
    "novel words covered, least",
    "novel words covered, most",
    "nothing novel",
    "words in common",
    "novel opening covered",
    "keys covered",
    "no keys",
    "no novel number in common",
    "a novel number in common",
    "question words in common",
    "length ratio",
    "words exchanged",
    "keys exchanged",
)
"""Names of the features. Novel words are those that no question gave; keys are names and numbers.

Exchanged are words or keys that either text has alone, in a text that is otherwise alike.
"""

WITHOUT_COSINE = tuple(name for name in FEATURES if not name.startswith("cosine"))

_ALIKE = 0.4
"""Share of common words (Jaccard) from which an exchange counts."""
_UNKNOWN_SHARE = 0.5
"""Of question words in common, when no question is known."""
_NEARLY_EQUAL = 0.6
"""The same, from which a negation on one side turns the meaning around."""


def compare_words(
    a: Wording, b: Wording, given: frozenset[str], cosine: float | None
) -> tuple[float, ...]:
    """Return the ``FEATURES`` of two texts, or those ``WITHOUT_COSINE``.

    ``given`` are the words of their questions.
    """
    common, either = a.content & b.content, a.content | b.content
    jaccard = _share(len(common), len(either))
    novel_a, novel_b = a.content - given, b.content - given
    covers = (_cover(novel_a, novel_b), _cover(novel_b, novel_a))
    keys_a, keys_b = (a.names | a.numbers) - given, (b.names | b.numbers) - given
    numbers_a, numbers_b = a.numbers - given, b.numbers - given
    exchange = max(jaccard - _ALIKE, 0.0)
    return (
        1.0,
        *(() if cosine is None else (cosine, max(cosine - 0.8, 0.0))),
        min(covers),
        max(covers),
        float(not (novel_a and novel_b)),
        jaccard,
        max(_cover(a.opening - given, novel_b), _cover(b.opening - given, novel_a)),
        max(_cover(keys_a, novel_b), _cover(keys_b, novel_a)),
        float(not (keys_a and keys_b)),
        float(bool(numbers_a and numbers_b) and not numbers_a & numbers_b),
        float(bool(numbers_a & numbers_b)),
        _share(len(common & given), len(either & given)) if given else _UNKNOWN_SHARE,
        abs(log(1 + a.length) - log(1 + b.length)),
        exchange * bool(a.content - common and b.content - common),
        exchange * bool(keys_a - common and keys_b - common),
    )


def probability(features: Sequence[float], weights: Sequence[float]) -> float:
    """Return the logistic function of the weighted features."""
    logit = sum(weight * value for weight, value in zip(weights, features, strict=True))
    return 1 / (1 + exp(-max(min(logit, 30.0), -30.0)))


def answers_oppose(a: Wording, b: Wording) -> bool:
    """Tell that one text begins with yes and the other with no."""
    return a.polarity * b.polarity < 0


def may_oppose(a: Wording, b: Wording) -> bool:
    """Tell that the texts are worded nearly alike and only one of them has a negation."""
    if a.negated == b.negated:
        return False
    return len(a.content & b.content) >= _NEARLY_EQUAL * len(a.content | b.content)


def _cover(words: frozenset[str], others: frozenset[str]) -> float:
    return _share(len(words & others), len(words))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
