"""Computes the threshold from labelled candidates, and the evidence of audits about it.

**The curve** gives an upper bound of the error at every score. The error is estimated in bins of
equal mass, made monotone (pool adjacent violators), corrected for the judge's errors (Rogan and
Gladen 1978) and summed up from the best score down.

**The alarm and the certificate** are sequential tests. Both divide the likelihood of the audits
under a Beta mixture of error rates by their likelihood under one error rate. If this rate is the
true one, the ratio is an e-value: the probability that it ever exceeds 20 is at most 1/20, however
often one looks (Ville 1939; Howard et al. 2021; Ramdas et al. 2023). The alarm tests the promised
rate with a Beta(1, 9) mixture. The certificate rules out rates with a Beta(1, 99) mixture. Audits
are drawn uniformly. A certificate assumes that the rate was stable while they were made.

**Which pairs are compared.** The fresh answer to a miss may be compared with the neighbour's
answer. A comparison may need the encoding of an answer, which costs more than all other work for a
miss. So pairs are drawn with a probability that depends on the CPU time that is left. With enough
CPU time, nearly all pairs are compared. With less, pairs near the threshold are preferred, because
only they show where the threshold must be. The probability never depends on the answers, and each
label also counts for the pairs that were not drawn. So with fewer comparisons the same rule is
learned, only more slowly.
"""

from __future__ import annotations

from math import exp, lgamma, log
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headstart.decisions import Rule, Verdict
from headstart.policies.learned_rule.error_limit import (
    LEAST_DRAW_PROBABILITY,
    JudgeNoise,
    is_near_miss,
)
from headstart.policies.learned_rule.features import (
    CAUTION,
    NAMES,
    LabelledRow,
    Posterior,
    derivatives,
    judged_same_probability,
)
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


MEMORY = 3000
"""Labelled candidates that a domain keeps: enough to tell 1 % from 2 %, few enough to stay recent.

With 2,000 a target of 1 % served about a fifth less (``docs/safe-hits-measured.md``)."""
BINS = 24
"""Equal shares of candidates, by score, over which the error is estimated."""
BIN_PRIOR = 2 * 40 / BINS
"""The weight of the model's own estimate of the error: it counts as this number of labels in each
bin, because one or two labels prove nothing."""
LOWEST_SCORE = -3.0
"""Candidates with a lower score are left out. They are wrong with odds of 20 to 1, so they do not
show where the threshold must be."""
PRINCIPAL_SHARE = 0.05
"""The largest share of the memory for one of many principals."""
ALARM_EVIDENCE = 20.0
"""This e-value raises the alarm: by chance in one of 20 domains at most (Ville's inequality)."""
ALARM_WINDOW = 300
"""The evidence is reset after this number of audits: a long good past must not hide errors."""
_CERTIFICATE_MIXTURE = (1.0, 99.0)
_ALARM_MIXTURE = (1.0, 9.0)
"""Parameters of the Beta distributions of error rates."""
_CONFIDENCE = 0.95
_TOLERANCE = 1e-7
"""The precision of a bound on an error rate."""


def upper_bound(audits: int, wrong: int) -> float:
    """Return the 95 % anytime-valid upper bound of the error rate; 1.0 before any audit."""
    low, high = wrong / audits if audits else 1.0, 1.0
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        if _is_certified(audits, wrong, middle):
            high = middle
        else:
            low = middle
    return high


def audits_needed(audits: int, wrong: int, max_error: float) -> int | None:
    """Return how many more audits certify ``max_error`` if errors go on at the rate so far.

    0: it is certified now. None: that rate is too high ever to be certified.
    """
    if upper_bound(audits, wrong) <= max_error:
        return 0
    rate = wrong / audits if audits else 0.0
    if rate >= max_error:
        return None
    low, high = 0, 1
    while not _is_certified(audits + high, wrong + rate * high, max_error):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _is_certified(audits + middle, wrong + rate * middle, max_error):
            high = middle
        else:
            low = middle
    return high


def _is_certified(audits: int, wrong: float, rate: float) -> bool:
    if rate >= 1.0:
        return wrong < audits
    return _log_evidence(_CERTIFICATE_MIXTURE, audits, wrong, rate) > -log(1 - _CONFIDENCE)


_TINY = 1e-9
"""The distance of error rates from 0 and 1, so that their logarithms are finite."""


class Alarm(Frozen, frozen=True, kw_only=True, array_like=True):
    """Audits since the evidence was last reset."""

    audits: int = 0
    wrong: int = 0

    def count_audit(self, *, same: bool) -> Alarm:
        """Count one audit; a full window is reset."""
        if self.audits >= ALARM_WINDOW:
            return Alarm(audits=1, wrong=int(not same))
        return Alarm(audits=self.audits + 1, wrong=self.wrong + (not same))

    def evidence(self, rate: float) -> float:
        """Return the e-value against an error of at most ``rate``."""
        rate = min(max(rate, _TINY), 1 - _TINY)
        return exp(_log_evidence(_ALARM_MIXTURE, self.audits, self.wrong, rate))

    def raised(self, rate: float) -> bool:
        """Tell whether there is enough evidence that the error exceeds ``rate``."""
        return self.wrong > rate * self.audits and self.evidence(rate) > ALARM_EVIDENCE


def _log_evidence(mixture: tuple[float, float], audits: int, wrong: float, rate: float) -> float:
    """Return the log of the likelihood ratio: a mixture of error rates against one rate."""
    a, b = mixture
    right = audits - wrong
    likelihood = _log_beta(a + wrong, b + right) - _log_beta(a, b)
    return likelihood - (wrong * log(rate) if wrong else 0.0) - right * log(1 - rate)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


class LabelTable(msgspec.Struct, frozen=True):
    """The rows as columns, oldest first. Never mutated."""

    features: NDArray[np.float16]
    same: NDArray[np.bool_]
    offset: NDArray[np.float32]
    mass: NDArray[np.float32]
    similarity: NDArray[np.float32]
    principal: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.same)


def no_memory() -> LabelTable:
    """Return an empty memory."""
    few = np.empty(0, np.float32)
    return LabelTable(
        np.empty((0, len(NAMES)), np.float16),
        np.empty(0, np.bool_),
        few,
        few,
        few,
        np.empty(0, np.int64),
    )


def remember_rows(memory: LabelTable, rows: Sequence[LabelledRow]) -> LabelTable:
    """Append rows, drop the oldest beyond ``MEMORY``, and limit each principal to its share."""
    if not rows:
        return memory
    columns = zip(msgspec.structs.astuple(memory), zip(*rows, strict=True), strict=True)
    joined = LabelTable(*(np.concatenate([old, np.array(new, old.dtype)]) for old, new in columns))
    kept = _fair(joined.principal)[-MEMORY:]
    return LabelTable(*(column[kept] for column in msgspec.structs.astuple(joined)))


def _fair(principals: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the places of the newest rows of each principal, up to its share.

    A share is 5 % of the memory, or an equal part if there are fewer than 20 principals.
    """
    different, inverse, counts = np.unique(principals, return_inverse=True, return_counts=True)
    most = int(MEMORY * max(PRINCIPAL_SHARE, 1 / len(different)))
    if counts.max() <= most:
        return np.arange(len(principals))
    kept = np.ones(len(principals), np.bool_)
    for which in np.flatnonzero(counts > most):
        kept[np.flatnonzero(inverse == which)[:-most]] = False
    return np.flatnonzero(kept)


FEWEST = 40
"""Fewest candidates for a threshold."""


class ErrorCurve(msgspec.Struct, frozen=True):
    """The possible thresholds (cuts), the highest first, with their errors and served shares."""

    cuts: NDArray[np.float64]
    errors: NDArray[np.float64]
    """Estimated share of wrong answers among candidates that score at least the cut."""
    deviations: NDArray[np.float64]
    """Standard deviation of ``errors``."""
    served: NDArray[np.float64]
    """Share of all candidates that score at least the cut."""

    def threshold(self, max_error: float, margin: float) -> float | None:
        """Return the lowest cut whose error bound is at most ``max_error``; None: there is none."""
        return self._lowest(self.errors + margin * self.deviations <= max_error)

    def threshold_of_requests(self, max_error: float, margin: float) -> float | None:
        """Do the same for the wrong hits as a share of all requests."""
        bounds = (self.errors + margin * self.deviations) * self.served
        return self._lowest(bounds <= max_error)

    def _lowest(self, kept: NDArray[np.bool_]) -> float | None:
        places = np.flatnonzero(kept)
        return float(self.cuts[places[-1]]) if len(places) else None


def no_curve() -> ErrorCurve:
    """Return the curve of a domain that knows nothing: it has no cut."""
    none = np.empty(0)
    return ErrorCurve(none, none, none, none)


def draw_curve(
    scores: NDArray[np.float64],
    same: NDArray[np.bool_],
    mass: NDArray[np.float64],
    risks: NDArray[np.float64],
    noise: JudgeNoise,
) -> ErrorCurve:
    """Estimate the error above every cut.

    ``mass`` is the number of candidates that each row counts for. ``risks`` are the model's
    probabilities of a "different" label.
    """
    order = np.argsort(-scores, kind="stable")
    total = float(mass.sum())
    order = order[scores[order] >= LOWEST_SCORE]
    if len(order) < FEWEST:
        return no_curve()
    scores, same, mass, risks = scores[order], same[order], mass[order], risks[order]
    cumulated = np.cumsum(mass)
    bins = np.minimum((cumulated - mass / 2) / cumulated[-1] * BINS, BINS - 1).astype(np.intp)
    count = np.bincount(bins, np.ones(len(bins)), BINS)
    used = np.flatnonzero(count)
    bad = np.bincount(bins, ~same, BINS)[used]
    risk = np.bincount(bins, risks, BINS)[used]
    share = np.bincount(bins, mass, BINS)[used].astype(np.float64)
    labels = count[used].astype(np.float64)
    errors: NDArray[np.float64] = (bad + BIN_PRIOR * risk / labels) / (labels + BIN_PRIOR)
    errors, variances = _pool_bins(errors, labels + BIN_PRIOR, share)
    errors, slope = _without_noise(errors, noise)
    above = np.cumsum(share)
    mean = np.cumsum(errors * share) / above
    deviation = np.sqrt(np.cumsum(variances * slope**2 * share**2)) / above
    last = np.searchsorted(bins, used, side="right") - 1
    return ErrorCurve(scores[last], mean, deviation, above / total)


_LEAST_REMAINDER = 0.2
"""The least value of 1 - leverage by which ``memory_scores`` divides. A row with a high leverage
nearly determines its own score, so its Newton step back would be far too large."""


def memory_scores(
    model: Posterior, memory: LabelTable, noise: JudgeNoise
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the cautious scores of all remembered candidates, and the probabilities of "same".

    Each is computed as if the candidate's own label had not been learned: on labels that it has
    learned, a model shows fewer errors than it will make later.

    One Newton step back (Pregibon 1981, "Logistic Regression Diagnostics"): a label with slope r
    and curvature w has moved its own score, whose variance is v, by v r / (1 - v w). The product
    v w is the leverage of the label.
    """
    features = memory.features.astype(np.float64)
    scores = features @ model.mean + memory.offset
    variances = np.einsum("ij,ij->i", features @ model.covariance, features)
    labels = memory.same.astype(np.float64)
    slopes, curvatures = derivatives(1 / (1 + np.exp(-scores)), labels, noise)
    remainders = np.maximum(1 - variances * curvatures, _LEAST_REMAINDER)
    scores_without_label = scores - variances * slopes / remainders
    probabilities = 1 / (1 + np.exp(-scores_without_label))
    return scores_without_label - CAUTION * np.sqrt(variances), probabilities


def curve_of(model: Posterior, memory: LabelTable, noise: JudgeNoise) -> ErrorCurve:
    """Return the curve of these labelled candidates."""
    scores, same = memory_scores(model, memory, noise)
    mass = memory.mass.astype(np.float64)
    return draw_curve(scores, memory.same, mass, 1 - judged_same_probability(same, noise), noise)


class PooledBlock(NamedTuple):
    """Adjacent values that were replaced by their mean."""

    mean: float
    weight: float
    """The sum of their weights."""
    size: int
    """Their number."""


def pool_adjacent(values: Sequence[float], weights: Sequence[float]) -> list[PooledBlock]:
    """Pool neighbours until the values rise."""
    blocks: list[PooledBlock] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, size = value, weight, 1
        while blocks and blocks[-1].mean >= mean:
            before = blocks.pop()
            mean = (mean * total + before.mean * before.weight) / (total + before.weight)
            total, size = total + before.weight, size + before.size
        blocks.append(PooledBlock(mean, total, size))
    return blocks


def _pool_bins(
    errors: NDArray[np.float64], weights: NDArray[np.float64], shares: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pool adjacent bins until the error never falls as the score falls. Return also variances.

    The variance of a pooled block is spread over its bins so that their squared shares add up to
    the squared share of the block.
    """
    means, totals, sizes = zip(*pool_adjacent(errors.tolist(), weights.tolist()), strict=True)
    pooled, labels = np.repeat(means, sizes), np.repeat(totals, sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    together = np.repeat(np.add.reduceat(shares, starts), sizes)
    alone = np.repeat(np.add.reduceat(shares**2, starts), sizes)
    variance = np.maximum(pooled, 1 / labels) * (1 - pooled) / labels
    return pooled, variance * together**2 / alone


def _without_noise(
    observed: NDArray[np.float64], noise: JudgeNoise
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the true error for an observed one (Rogan and Gladen 1978), and the slope of the map.

    If the judge is unsure, there is no label. So the labelled pairs are not a fair sample of the
    compared ones, which ``ratio`` corrects.
    """
    ratio = (1 - noise.unsure_different) / (1 - noise.unsure_same)
    low = noise.false_disagree
    span = ratio * (1 - noise.false_agree) - low
    bottom = span + observed * (1 - ratio)
    errors = np.clip((observed - low) / bottom, 0.0, 1.0)
    return errors, (span + low * (1 - ratio)) / bottom**2


# --- which pairs are compared ---------------------------------------------------------------------

UNLIKELY_SCORE = -4.0
"""Pairs with a lower score (log-odds) are far from any threshold: 98 of 100 have different
answers."""
UNLIKELY_SHARE = 0.2
"""The largest share of these pairs that is compared."""
NEAR_SCORE = 2.0
"""A pair is near the threshold if its score is at most this much lower (in log-odds)."""
PLENTY = 0.5
"""While more than this share of the budget is left, all pairs near the threshold are compared."""
FAR_POWER = 3
"""When little of the budget is left, the probability of pairs near the threshold is proportional to
the part that is left. The probability of all other pairs is proportional to this power of it."""


def comparison_share(verdict: Verdict, max_error: float, left: float) -> float:
    """Return the probability with which a miss is compared.

    ``left`` is the part of the CPU budget that is left; if nothing is left, no pair is compared.
    All near misses of the cold start have the same probability, because their unweighted share of
    different answers decides how far the threshold is trusted.
    """
    if left <= 0:
        return 0.0
    with_enough = 1.0
    if verdict.rule is Rule.LEARNED:
        score = verdict.score or 0.0
        is_near = score >= (verdict.threshold or 0.0) - NEAR_SCORE
        with_enough = UNLIKELY_SHARE if score < UNLIKELY_SCORE else 1.0
    else:
        is_near = is_near_miss(verdict.similarity, max_error)
    share = min(1.0, left / PLENTY) ** (1 if is_near else FAR_POWER)
    return max(with_enough * share, LEAST_DRAW_PROBABILITY)
