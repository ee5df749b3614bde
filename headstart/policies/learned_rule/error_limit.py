"""The error limit of the learned rule, its constants with their reasons, and the cold start.

The algorithm is described in ``docs/safe-hits.md``.

**The cold start** is the rule before there are enough labels. Every guard must pass, and the
similarity must reach a threshold. The thresholds were chosen on the first 4,000 requests of
CLINC150, Banking77 and the synthetic slots, in two orderings each: on none of them did the exact
one-sided 95 % lower bound of the error exceed the target. The errors on the three sets were 0 / 1.1
/ 0 % for a target of 1 %, 0.7 / 2.5 / 0 % for 2 % and 0.5 / 3.9 / 0.2 % for 5 %. (About one in a
hundred of Banking77's own labels is wrong.) ``expected_hit_rate`` tells how many hits to expect.
The promise does not cover the cold start.

Other traffic may have far more near misses. So pairs that are nearly similar enough are compared,
too. The share of them with different answers decides whether the threshold is trusted, is raised,
or nothing is served (``NearMissCounts``).
"""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum
from math import inf, log, sqrt
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headstart.errors import ConfigError
from headstart.policies.agreement.judge import FREE_TEXT
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.settings import ColdStart, ErrorOf


_THRESHOLDS = ((0.005, 0.97), (0.01, 0.94), (0.02, 0.90), (0.05, 0.86), (0.10, 0.82))
"""The least error target for each similarity. For smaller targets no similarity is enough."""
STRICT = 0.98
"""The similarity that a hit needs until enough near misses were compared."""
BAND = 0.10
"""A miss is a near miss if its similarity is at most this much below the threshold."""
ENOUGH_COMPARED = 15
"""Number of near misses after which their share of different answers is trusted."""
DOUBTFUL = 0.05
"""Above this share of different answers the threshold is raised."""
RAISED_BY = 0.04
TRAPS = 0.20
"""Above this share of different answers nothing is served. Measured shares: 0 to 0.15 on easy
traffic, 0.55 to 0.90 on traffic with many traps."""
DOUBTFUL_ERRORS, TRAPS_ERRORS = 2.5, 5.0
"""For lax error targets both shares are these multiples of the target, if that is more: with a
target of 10 %, less similar pairs are compared, and more of them have different answers."""
EVEN = 0.5
"""A pair with a higher probability of a different answer is not served while ``RAISED``."""


DOUBT = 2
"""The number of different answers that is added for pairs that only soft guards veto. So with a
target of 2 %, such pairs are served only after 98 compared pairs with equal answers, or 147 of 148.
With the value 1, 16 of 452 such hits were wrong in a template with messages."""


class Trust(StrEnum):
    """How far the cold-start threshold is trusted."""

    STRICT = "strict"
    """Too few near misses were compared: only near repeats are served."""
    FULL = "full"
    RAISED = "raised"
    """Some near misses had other answers: the threshold is higher by ``RAISED_BY``."""
    NONE = "none"
    """Many near misses had other answers: nothing is served."""


class NearMissCounts(Frozen, frozen=True, kw_only=True, array_like=True):
    """Near misses that were compared, and how many of them had another answer."""

    compared: int = 0
    different: int = 0
    vetoed: int = 0
    """Compared pairs that only a soft guard kept from being served; they are near misses, too."""
    vetoed_different: int = 0

    def with_label(self, *, same: bool) -> NearMissCounts:
        """Count one more comparison."""
        return replace(self, compared=self.compared + 1, different=self.different + (not same))

    def with_vetoed(self, *, same: bool) -> NearMissCounts:
        """Count one more pair that only a soft guard vetoed."""
        vetoed_different = self.vetoed_different + (not same)
        return replace(self, vetoed=self.vetoed + 1, vetoed_different=vetoed_different)

    def lifts_soft_guards(self, share: float) -> bool:
        """Tell whether at most this share of the pairs that only soft guards veto differ."""
        return self.vetoed_different + DOUBT <= share * (self.vetoed + DOUBT)

    def trust(
        self, max_error: float, seen: Callable[[float], float], *, optimistic: bool = False
    ) -> Trust:
        """Return how far to trust the threshold of an error target.

        ``seen`` maps the true share of different answers to the share that the judge would find.
        ``optimistic`` trusts the threshold fully until enough were compared. The trust ends
        earlier if it would end even if all pairs still to be compared had equal answers.
        """
        few, start = self.compared < ENOUGH_COMPARED, Trust.FULL if optimistic else Trust.STRICT
        if few and not self.different:
            return start
        share = (self.different + 0.5) / (max(self.compared, ENOUGH_COMPARED) + 2)  # smoothed
        if share > seen(_traps(max_error)):
            return Trust.NONE
        if few:
            return start
        doubtful = max(DOUBTFUL, DOUBTFUL_ERRORS * max_error)
        return Trust.RAISED if share > seen(doubtful) else Trust.FULL


def cold_start_threshold(max_error: float, trust: Trust = Trust.FULL) -> float | None:
    """Return the similarity to require for an error target; None: nothing may be served."""
    place = bisect_right(_THRESHOLDS, (max_error, 1.0))
    if not place or trust is Trust.NONE:
        return None
    threshold = _THRESHOLDS[place - 1][1]
    if trust is Trust.STRICT:
        return STRICT
    return min(round(threshold + RAISED_BY, 2), STRICT) if trust is Trust.RAISED else threshold


def least_score(max_error: float, trust: Trust) -> float:
    """Return the score that a hit of the cold start needs besides the similarity.

    While the threshold is raised, more near misses than ``DOUBTFUL`` have other answers. A pair is
    then served only if the domain's own model doubts it less than near misses may be doubted
    before nothing is served, and never if it finds another answer more likely. On twelve data sets
    that no number here was chosen on, 21 of 1,082 hits of the cold start were wrong without this
    rule, and 11 of 1,046 with it (exact labels). With ``DOUBTFUL`` in the place of ``TRAPS``, 7 of
    893 were wrong.
    """
    if trust is not Trust.RAISED:
        return -inf
    return log(1 / min(_traps(max_error), EVEN) - 1)


def _traps(max_error: float) -> float:
    """Return the share of different answers above which nothing is served."""
    return max(TRAPS, TRAPS_ERRORS * max_error)


def is_near_miss(similarity: float, max_error: float) -> bool:
    """Tell whether a refused neighbour is a near miss (``BAND``)."""
    threshold = cold_start_threshold(max_error)
    return threshold is not None and similarity >= threshold - BAND


_HIT_RATES = ((0.0, 0.0), (0.01, 0.04), (0.015, 0.13), (0.02, 0.19), (0.05, 0.35))
"""The hit rates of free text that were reached from each error target on: the lower of the means of
CLINC150 and Banking77, three orderings of 6,000 distinct prompts from cold, at the default
confidence (``docs/evidence/safe-hits-table.json``). Orderings differ: at 2 %, 3 to 32 %."""


def expected_hit_rate(max_error: float) -> float:
    """Return the share of distinct prompts to expect as semantic hits in the first thousands.

    It is higher if answers are compared exactly (labels, JSON, tool calls): for free text the
    errors of the judge are the limit.
    """
    return _HIT_RATES[bisect_right(_HIT_RATES, (max_error, 1.0)) - 1][1]


MARGINS = {0.69: 0.5, 0.84: 1.0, 0.95: 1.64}
"""The margin in standard deviations, by one-sided confidence."""


class JudgeNoise(Frozen):
    """How often the agreement judge errs, as shares of its sure judgements.

    The defaults are those of the built-in judge for free text (``docs/agreement.md``).
    """

    false_disagree: float = FREE_TEXT.beta
    """Share of same answers that it calls different, until null audits have measured it."""
    false_agree: float = FREE_TEXT.alpha
    """Share of different answers that it calls the same."""
    unsure_same: float = FREE_TEXT.unsure
    """Share of the same answers about which it is not sure."""
    unsure_different: float = FREE_TEXT.unsure_different

    def measured(self, nulls: int, different: int) -> JudgeNoise:
        """Return the noise after null audits, of which the judge called some answers different.

        ``false_disagree`` stays as it is while the audits do not contradict it, because a few
        audits are less exact than the default.
        """
        share, deviation = self._false_disagree(nulls, different)
        known = self.false_disagree
        if known - LOWER * deviation <= share <= known + HIGHER * deviation:
            return self
        return replace(self, false_disagree=min(share, MOST_FALSE_DISAGREE))

    def highest(self, nulls: int, different: int) -> JudgeNoise:
        """Return the noise of the worst judge that these null audits do not contradict."""
        share, deviation = self._false_disagree(nulls, different)
        return replace(self, false_disagree=min(share + 2 * deviation, MOST_FALSE_DISAGREE))

    def _false_disagree(self, nulls: int, different: int) -> tuple[float, float]:
        """Return the mean of the share after null audits, and its standard deviation.

        The deviation is at least that of the known share, because a hundred audits without a
        difference are not surprising.
        """
        weight = NULL_STRENGTH + nulls
        mean = (self.false_disagree * NULL_STRENGTH + different) / weight
        share = max(mean, self.false_disagree)
        return mean, sqrt(share * (1 - share) / weight)


EXACT_JUDGE = JudgeNoise(false_disagree=0, false_agree=0, unsure_same=0, unsure_different=0)
"""The noise of a judge that never errs, such as that of labels, JSON and tool calls."""


class ErrorLimit(Frozen):
    """The share of wrong answers that a domain must not exceed. Raises ConfigError."""

    max_error: float = 0.02
    """Share of wrong answers, above 0 and at most 0.5."""
    error_of: ErrorOf = "hits"
    """The error is a share of semantic hits, or of all requests (laxer: it counts misses too)."""
    confidence: float = 0.84
    """One-sided confidence at each threshold update: 0.69, 0.84 or 0.95."""
    judge: JudgeNoise = JudgeNoise()
    cold_start: ColdStart = "strict"
    """The hits that are served while too few near misses were compared to tell traps from easy
    traffic: near repeats alone, or all that pass the cold-start threshold."""

    def __post_init__(self) -> None:
        if not 0 < self.max_error <= 0.5:
            raise ConfigError(
                f"cache.max_error = {self.max_error}: use a share in (0, 0.5]; for exact repeats "
                'alone set cache.mode = "exact-only"'
            )
        if self.confidence not in MARGINS:
            raise ConfigError(f"cache.confidence = {self.confidence}: use one of {list(MARGINS)}")

    @property
    def margin(self) -> float:
        """Standard deviations between the estimated error and its upper bound."""
        return MARGINS[self.confidence]


UPDATE_EVERY = 50
"""Number of labels between two threshold updates. An update costs about as much CPU time as
learning 50 labels."""
MIN_LABELS = 200
"""With this number of labels the learned rule decides if it has a threshold that meets the
target."""
ENOUGH_LABELS = 800
"""With this number of labels the learned rule decides in any case. If no threshold meets the
target, it serves nothing."""
PRIOR_VARIANCE = 2.0
"""The variance of each weight of the model before the first label."""
MIN_AUDIT_RATE = 0.02
"""The least share of the hits that is audited, unless the settings name another one."""
LEAST_DRAW_PROBABILITY = 0.01
"""The least probability of a draw with which a label is weighted. A label counts for 1 /
probability hits, so for at most 100."""
MAX_AUDIT_RATE = 0.10
"""The share of the hits that is audited before the first audit."""
AUDITS_HALF_LIFE = 20
"""The audit rate falls as 1 / sqrt(1 + audits / AUDITS_HALF_LIFE), down to its minimum."""
NULLS_WANTED = 100
EARLY_NULL_RATE = 0.05
"""The share of exact hits for which the provider is asked again (null audits), until there were
``NULLS_WANTED``. They show how often the judge calls equal answers different. The lower this share
is, the more hits can be shown to be safe."""
NULL_STRENGTH = 20
"""The weight of the default error rate of the judge: it counts as this number of null audits."""
LOWER, HIGHER = 2.0, 1.3
"""Null audits replace that default if their result is this many standard deviations lower or
higher. Two answers to one question differ less than answers to two wordings, so a low result says
less."""
MOST_FALSE_DISAGREE = 0.5
"""A higher rate is not believed, because a judge with such a rate would be useless."""
REPEATS_TARGET = 0.02
"""The least error target with which misses are asked twice. A few hundred null audits measure the
judge's errors to about 0.015, which is too rough for a stricter target: at 0.01, 1.6 % and 1.8 % of
the hits of two streams were wrong."""
REPEATS_FROM = 100
"""From this number of labels on, some misses are asked twice: null audits without exact hits."""
FIRST_REPEATS, FIRST_REPEAT_RATE = 50, 0.5
"""Half of the near misses are asked twice until there were this many null audits. With a share of
0.2, the model had learned too much from the judge's errors before they were known."""
REPEAT_RATE, MOST_REPEATS = 0.2, 200
"""The share of later near misses, and the number of null audits after which none is asked twice."""
REPEAT_SCORE = 2.0
"""The least score of a miss that is asked twice. Pairs that are served have such scores. Prompts
whose answers always differ, such as stories, have lower ones. If they were asked twice, too, the
judge would seem to err more than it does on hits: with 10 % of such topics, 3.8 % of the other hits
were wrong at a target of 2 %, in place of 1.9 %."""
MOST_ENTRY_STATS = 10_000
"""Most entries whose answer group and offset are remembered."""

SOFT_GUARDS = frozenset({"substitution"})
"""Guards that veto only at cold start, until enough of the pairs that they veto had equal answers
(``DOUBT``). Under the learned rule their result is one of the features: if one answer serves many
wordings, four of five exchanged words change nothing, and labels show which."""
OWN_VETOES = frozenset({"threshold", "doubtful", "unlearned", "unqualified", "alarm", "unrelated"})
"""The vetoes of the rule itself, and not of a guard."""
