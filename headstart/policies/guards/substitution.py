"""Substitution: one or two content words exchanged for words of another meaning.

Two names in the same sentence have nearly the same sentence vector, but their token vectors
differ. The veto needs no list of names and no capitals: it compares the contextual vectors of the
exchanged words (late interaction, Khattab and Zaharia 2020, used as a veto and not as a score).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.policies.guards.vectors import unit_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headstart.policies.guards.parse import Parse

MOST_EXCHANGED = 2
"""More exchanged words than this a side make a new sentence, which the similarity judges."""
LEAST_MAXSIM = 0.595
"""Below it, exchanged words mean different things (``docs/how-a-hit-is-decided.md``)."""


def words_substituted(a: Parse, b: Parse) -> bool:
    """Veto when a few content words were exchanged and their vectors are far apart.

    Without vectors (very long prompts) an exchange cannot be checked, so it is a veto.
    """
    only_a, only_b = a.content - b.content, b.content - a.content
    if not 1 <= len(only_a) <= MOST_EXCHANGED or not 1 <= len(only_b) <= MOST_EXCHANGED:
        return False
    maxsim = exchanged_maxsim(a, b)
    return maxsim is None or maxsim < LEAST_MAXSIM


def exchanged_maxsim(a: Parse, b: Parse) -> float | None:
    """Return how near the content words that only one prompt has are to the other prompt, -1 to 1.

    The mean over those words, whatever their number and side, of the cosine to the most similar
    word of the other prompt, both in context. None when there are none, or no vectors.
    """
    only_a, only_b = a.content - b.content, b.content - a.content
    if not (only_a or only_b) or not a.vectors or not b.vectors:
        return None
    vectors_a, vectors_b = _unit_rows(a), _unit_rows(b)
    best = [
        *(vectors_a[_rows_of(only_a, a)] @ vectors_b.T).max(axis=1),
        *(vectors_b[_rows_of(only_b, b)] @ vectors_a.T).max(axis=1),
    ]
    return float(sum(best)) / len(best)


def _rows_of(words: frozenset[str], parse: Parse) -> list[int]:
    return [row for row, word in enumerate(dict.fromkeys(parse.stems)) if word in words]


def _unit_rows(parse: Parse) -> NDArray[np.float32]:
    return unit_rows(parse.vectors, len(dict.fromkeys(parse.stems)))
