"""What the model sees of a prompt and its nearest neighbour: 21 numbers, each about -2 to 2.

Lexical overlap, agreement of the neighbours, and late interaction (MaxSim, Khattab and Zaharia
2020) of the content words' contextual vectors.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, log
from typing import TYPE_CHECKING

import numpy as np

from headstart.policies.guards.parse import PARSE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from headstart.decisions import Nearby, Neighbor
    from headstart.policies.guards.parse import Parse
    from headstart.policies.ratchet.standings import Standing

VERSION = f"verified-1.{PARSE_VERSION}"
"""Changes whenever a feature or a guard changes meaning: what was learned is then of no use."""

_PRIOR: Mapping[str, float] = {
    "bias": -2.0,
    "similarity": 1.5,
    "margin": 0.0,
    "vote": 0.0,
    "group-size": 0.0,
    "shared-words": 0.0,
    "content-mismatch": 0.0,
    "same-content": 0.0,
    "exchanged": -1.5,
    "question-word": -0.5,
    "length-ratio": 0.0,
    "length": 0.0,
    "crowd": 0.0,
    "similarity-margin": 0.0,
    "maxsim-content": 0.0,
    "maxsim-worst": 0.0,
    "maxsim-exchanged": 0.0,
    "number": -3.0,
    "negation": -2.0,
    "date": -1.0,
    "vetoed": -1.0,
}
NAMES = tuple(_PRIOR)
PRIOR_MEAN: NDArray[np.float64] = np.array(list(_PRIOR.values()))

_TEMPERATURE = 0.05
"""Of the neighbours' vote: a neighbour 0.05 less similar counts for a third."""
_CROWD = 5
_QUESTION_WORDS = frozenset(
    ("who", "whom", "whose", "what", "which", "when", "where", "why", "how")
)


def measure(
    query: Parse,
    candidate: Parse,
    nearby: Nearby,
    standing: Callable[[str], Standing],
    veto: str | None,
) -> NDArray[np.float64]:
    """Return f64[d], rounded to fp16: a stored label must give the very same score."""
    similarity = nearby.neighbor.similarity
    spread = -log(1.005 - min(similarity, 1.0)) - 1.6
    margin, vote, size = _agreement(nearby, standing)
    row = (
        1.0,
        spread,
        margin,
        vote,
        size,
        *_words(query, candidate),
        _crowd(nearby.neighbors, similarity),
        spread * margin,
        *_late_interaction(query, candidate),
        float(sorted(query.quantities) != sorted(candidate.quantities)),
        float(query.negated != candidate.negated),
        float(sorted(query.dates) != sorted(candidate.dates)),
        float(veto is not None),
    )
    return np.array(row, np.float16).astype(np.float64)


def pack_features(features: NDArray[np.float64]) -> bytes:
    """Serialise as fp16, two bytes a feature."""
    return features.astype("<f2").tobytes()


def unpack_features(packed: bytes) -> NDArray[np.float64]:
    """Read what ``pack_features`` wrote. Raises ValueError on another number of features."""
    features = np.frombuffer(packed, "<f2").astype(np.float64)
    if not np.isfinite(features).all():
        raise ValueError("a feature is not a finite number")
    if features.shape != PRIOR_MEAN.shape:
        raise ValueError(f"found {features.size} features, expected {len(NAMES)}")
    return features


def _agreement(nearby: Nearby, standing: Callable[[str], Standing]) -> tuple[float, float, float]:
    """Return margin, vote and size of the candidate's answer group among the neighbours."""
    own = standing(nearby.neighbor.id)
    similarity = nearby.neighbor.similarity
    rival = ours = total = 0.0
    for neighbor in nearby.neighbors:
        weight = exp((neighbor.similarity - similarity) / _TEMPERATURE)
        total += weight
        if neighbor.id == nearby.neighbor.id or standing(neighbor.id).group == own.group:
            ours += weight
        else:
            rival = max(rival, neighbor.similarity)
    margin = 5 * max(min(similarity - rival, 0.4), -0.4)
    return margin, ours / total - 0.5, 0.4 * min(log(1 + own.size), 5.0)


def _crowd(neighbors: Sequence[Neighbor], similarity: float) -> float:
    nearest = neighbors[:_CROWD]
    return 5 * (sum(neighbor.similarity for neighbor in nearest) / len(nearest) - similarity)


def _words(query: Parse, candidate: Parse) -> tuple[float, ...]:
    a, b = frozenset(query.stems), frozenset(candidate.stems)
    only_a, only_b = query.content - candidate.content, candidate.content - query.content
    all_content = len(query.content) + len(candidate.content)
    shared = len(a & b) / max(len(a | b), 1)
    mismatch = (len(only_a) + len(only_b)) / max(all_content, 1)
    return (
        2 * shared - 1,
        2 * mismatch - 1,
        float(not only_a and not only_b),
        float(1 <= len(only_a) <= 2 and 1 <= len(only_b) <= 2),
        float(a & _QUESTION_WORDS != b & _QUESTION_WORDS),
        abs(log((1 + len(query.stems)) / (1 + len(candidate.stems)))),
        log(1 + len(query.stems)) - 2.3,
    )


def _late_interaction(query: Parse, candidate: Parse) -> tuple[float, float, float]:
    """Return mean and least MaxSim of the content words, and the mean of the exchanged ones.

    Centred so that 0 is undecided, which is also what prompts without vectors get.
    """
    if not query.vectors or not candidate.vectors:
        return 0.0, 0.0, 0.0
    table = (
        _rows(query.vectors, len(_words_of(query.stems)))
        @ _rows(candidate.vectors, len(_words_of(candidate.stems))).T
    )
    forward, backward = table.max(axis=1).tolist(), table.max(axis=0).tolist()
    content = [
        *_pick(forward, query.stems, query.content),
        *_pick(backward, candidate.stems, candidate.content),
    ]
    exchanged = [
        *_pick(forward, query.stems, query.content - candidate.content),
        *_pick(backward, candidate.stems, candidate.content - query.content),
    ]
    if not content:
        return 0.0, 0.0, 0.0
    return (
        5 * (sum(content) / len(content) - 0.75),
        3 * (min(content) - 0.5),
        3 * (sum(exchanged) / len(exchanged) - 0.5) if exchanged else 1.5,
    )


def _pick(values: Sequence[float], stems: tuple[str, ...], words: frozenset[str]) -> list[float]:
    return [value for value, word in zip(values, _words_of(stems), strict=True) if word in words]


@lru_cache(maxsize=256)
def _words_of(stems: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(stems))


@lru_cache(maxsize=256)
def _rows(vectors: bytes, words: int) -> NDArray[np.float32]:
    rows = np.frombuffer(vectors, np.int8).reshape(words, -1).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows
