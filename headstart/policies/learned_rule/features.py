"""The features of a pair, the statistics of single entries, and the model that scores a pair.

A pair is a prompt and its nearest neighbour. The features are 21 numbers, each about -2 to 2:
lexical overlap, agreement of the neighbours, and late interaction (MaxSim, Khattab and Zaharia
2020) of the content words' contextual vectors. The model is a Bayesian logistic regression whose
posterior is updated with each label.
"""

from __future__ import annotations

from collections import Counter
from math import exp, log
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np

from headstart.policies.guards.words import PARSE_VERSION, Parse, distinct, unit_rows
from headstart.policies.learned_rule.error_limit import MOST_ENTRY_STATS, JudgeNoise
from headstart.types import Frozen, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from headstart.decisions import Neighbor, RankedNeighbor

VERSION = f"verified-1.{PARSE_VERSION}"
"""The version of features. Change it whenever a feature or a guard changes its meaning; older
labels are then useless."""

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

CAUTION = 0.5
"""Number of standard deviations that are subtracted from the score."""
FORGETTING = 0.9998
"""The factor by which old labels lose weight, so that the model follows slow drift."""
LEAST_WEIGHT = 1e-4
"""Least weight of a label."""
_TEMPERATURE = 0.05
"""The temperature of the neighbours' vote: a neighbour that is 0.05 less similar counts a third."""
_CROWD = 5
"""The nearest neighbours whose mean similarity is a feature."""
_QUESTION_WORDS = words_of("who whom whose what which when where why how")


def measure_pair(
    query: Parse,
    candidate: Parse,
    nearby: RankedNeighbor,
    stats_of: Callable[[str], EntryStats],
    veto: str | None,
) -> NDArray[np.float64]:
    """Return the features f64[d], rounded to fp16: a stored label must give the same score."""
    similarity = nearby.neighbor.similarity
    spread = -log(1.005 - min(similarity, 1.0)) - 1.6
    margin, vote, size = _agreement(nearby, stats_of)
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


def _agreement(
    nearby: RankedNeighbor, stats_of: Callable[[str], EntryStats]
) -> tuple[float, float, float]:
    """Return margin, vote and size of the candidate's answer group among the neighbours."""
    own = stats_of(nearby.neighbor.id)
    similarity = nearby.neighbor.similarity
    rival = ours = total = 0.0
    for neighbor in nearby.neighbors:
        weight = exp((neighbor.similarity - similarity) / _TEMPERATURE)
        total += weight
        if neighbor.id == nearby.neighbor.id or stats_of(neighbor.id).group == own.group:
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

    The values are centred: 0 is undecided. Prompts without vectors get 0, too.
    """
    if not query.vectors or not candidate.vectors:
        return 0.0, 0.0, 0.0
    words, others = distinct(query.stems), distinct(candidate.stems)
    table = unit_rows(query.vectors, len(words)) @ unit_rows(candidate.vectors, len(others)).T
    forward, backward = table.max(axis=1).tolist(), table.max(axis=0).tolist()
    content = _pick(forward, words, query.content)
    content += _pick(backward, others, candidate.content)
    exchanged = _pick(forward, words, query.content - candidate.content)
    exchanged += _pick(backward, others, candidate.content - query.content)
    if not content:
        return 0.0, 0.0, 0.0
    return (
        5 * (sum(content) / len(content) - 0.75),
        3 * (min(content) - 0.5),
        3 * (sum(exchanged) / len(exchanged) - 0.5) if exchanged else 1.5,
    )


def _pick(values: Sequence[float], words: Sequence[str], wanted: frozenset[str]) -> list[float]:
    return [value for value, word in zip(values, words, strict=True) if word in wanted]


class EntryStats(Frozen, frozen=True, kw_only=True, array_like=True):
    """The statistics of one entry: its answer group, and the residuals of the model on it."""

    group: str
    """Entries of one group were judged to have the same answer. Alone, it is the entry's own id."""
    size: int = 1
    residuals: float = 0.0
    """The sum of the residuals of its labels: for a judge that never errs, label - p."""
    weights: float = 0.0
    """The sum of the weights of its labels: for such a judge, p (1 - p)."""

    @property
    def offset(self) -> float:
        """The entry's own log-odds, shrunk to 0 while it has few labels (empirical Bayes)."""
        return self.residuals / (self.weights + 1)


class StatsRow(NamedTuple):
    """The part of an entry's ``EntryStats`` that is its own."""

    group: str
    residuals: float = 0.0
    weights: float = 0.0


class EntryStatsTable:
    """The statistics of a domain's entries. Beyond a bound the least recently labelled leave."""

    def __init__(self, rows: Mapping[str, StatsRow] | None = None) -> None:
        self._rows = dict(rows or {})
        self._sizes = Counter(row.group for row in self._rows.values())
        """The number of entries in each group."""

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, entry: str) -> EntryStats:
        """Return an entry's statistics; an unknown entry is alone and without offset."""
        row = self._rows.get(entry)
        if row is None:
            return EntryStats(group=entry)
        size = max(self._sizes[row.group], 1)
        return EntryStats(group=row.group, size=size, residuals=row.residuals, weights=row.weights)

    def learn(self, entry: str, residual: float, weight: float) -> None:
        """Add a label's residual and weight to an entry's offset."""
        row = self._take_row(entry)
        self._rows[entry] = StatsRow(row.group, row.residuals + residual, row.weights + weight)
        self._evict_oldest()

    def join(self, entry: str, neighbor: str) -> None:
        """Put a new entry into the answer group of a neighbour with the same answer."""
        if entry in self._rows:
            return
        row = self._rows[neighbor] = self._take_row(neighbor)
        self._rows[entry] = StatsRow(row.group)
        self._sizes[row.group] += 1
        self._evict_oldest()

    def rows(self) -> dict[str, StatsRow]:
        """Return the rows by entry, in the order of the last labels."""
        return dict(self._rows)

    def _take_row(self, entry: str) -> StatsRow:
        """Take an entry's row out, to be put back as the newest."""
        if entry in self._rows:
            return self._rows.pop(entry)
        self._sizes[entry] += 1
        return StatsRow(entry)

    def _evict_oldest(self) -> None:
        while len(self._rows) > MOST_ENTRY_STATS:
            oldest = self._rows.pop(next(iter(self._rows)))
            self._sizes[oldest.group] -= 1
            if not self._sizes[oldest.group]:
                del self._sizes[oldest.group]


# --- the model ------------------------------------------------------------------------------------


class LabelledRow(NamedTuple):
    """One labelled candidate that no guard vetoed."""

    features: NDArray[np.float64]
    same: bool
    offset: float
    mass: float
    """The number of candidates that it counts for, because an audit also counts for hits without an
    audit."""
    similarity: float
    principal: int


_TINY = 1e-12
"""Added to a variance, so that it is never 0."""


Shares = TypeVar("Shares", float, "NDArray[np.float64]")


class Posterior(msgspec.Struct, frozen=True):
    """The posterior of the weights: ``mean`` f64[d], ``covariance`` f64[d, d]. Never mutated."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


def cautious_score(model: Posterior, features: NDArray[np.float64], offset: float) -> float:
    """Return the log-odds that the answers are the same, less the uncertainty."""
    variance = features @ model.covariance @ features
    return float(features @ model.mean + offset - CAUTION * variance**0.5)


def update_posterior(
    model: Posterior, row: LabelledRow, noise: JudgeNoise
) -> tuple[Posterior, float, float]:
    """Learn one row; return the model, the label's residual and its weight.

    The likelihood includes the judge's errors. So if the model is sure that the answers are the
    same, a label "different" changes it only a little. Otherwise a judge that errs in one of ten
    cases would make the model unsure exactly where it must distinguish an error rate of 1 % from 0.
    """
    features = row.features
    probability = float(1 / (1 + np.exp(-(features @ model.mean + row.offset))))
    residual, weight = derivatives(probability, float(row.same), noise)
    covariance = model.covariance / FORGETTING
    spread = covariance @ features
    shrink = weight / (1 + weight * (features @ spread))
    covariance = covariance - np.outer(spread, spread) * shrink
    return Posterior(model.mean + (covariance @ features) * residual, covariance), residual, weight


def judged_same_probability(same: Shares, noise: JudgeNoise) -> Shares:
    """Return the probability that the judge says "same": P(same) (1 - d) + (1 - P(same)) a.

    ``same`` is P(same), the probability that the answers are the same; a and d are the judge's
    shares of false agreement and false disagreement.
    """
    discernment = 1 - noise.false_agree - noise.false_disagree
    return noise.false_agree + discernment * same


def derivatives(probability: Shares, label: Shares, noise: JudgeNoise) -> tuple[Shares, Shares]:
    """Return the slope and the expected curvature of a label's log-likelihood along the score.

    ``probability`` is the model's p = 1 / (1 + exp(-score)) that the answers are the same, and
    ``label`` the judge's verdict: 1 ("same") or 0.

    With q = P(the judge says "same") and q' = dq / dscore = p (1 - p) (1 - a - d), the
    log-likelihood label log(q) + (1 - label) log(1 - q) has the slope q' (label - q) / (q (1 - q)),
    and its expected curvature (the Fisher information) is q'^2 / (q (1 - q)).
    """
    judged_same = judged_same_probability(probability, noise)
    discernment = 1 - noise.false_agree - noise.false_disagree
    judged_slope = probability * (1 - probability) * discernment
    variance = judged_same * (1 - judged_same) + _TINY
    slope = judged_slope * (label - judged_same) / variance
    return slope, judged_slope * judged_slope / variance + LEAST_WEIGHT
