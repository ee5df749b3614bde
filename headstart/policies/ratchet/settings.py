"""The promise of the user, and the constants of the algorithm with their reasons.

The algorithm is described in ``docs/safe-hits.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.errors import ConfigError
from headstart.policies.agreement.judge import FREE_TEXT
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.settings import ColdStart, ErrorOf

MARGINS = {0.69: 0.5, 0.84: 1.0, 0.95: 1.64}
"""The margin in standard deviations, by one-sided confidence."""


class JudgeNoise(Frozen, frozen=True, kw_only=True):
    """How often the agreement judge errs: shares of the judgements that it is sure of.

    The defaults are those of the built-in judge for free text (``docs/agreement.md``).
    """

    false_disagree: float = FREE_TEXT.beta
    """Share of same answers that it calls different, until null audits have measured it."""
    false_agree: float = FREE_TEXT.alpha
    """Share of different answers that it calls the same."""
    unsure_same: float = FREE_TEXT.unsure
    """Share of the same answers about which it is not sure."""
    unsure_different: float = FREE_TEXT.unsure_different


EXACT_JUDGE = JudgeNoise(false_disagree=0, false_agree=0, unsure_same=0, unsure_different=0)
"""The noise of a judge that never errs, such as that of labels, JSON and tool calls."""


class Promise(Frozen, frozen=True, kw_only=True):
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


MEMORY = 3000
"""Labelled candidates that a domain keeps: enough to tell 1 % from 2 %, few enough to stay recent.

With 2,000 a target of 1 % served about a fifth less (``docs/safe-hits-measured.md``)."""
UPDATE_EVERY = 50
"""Labels between threshold updates: an update costs about as much as 50 lookups' learning."""
BINS = 24
"""Equal shares of candidates, by score, over which the error is estimated."""
BIN_PRIOR = 2 * 40 / BINS
"""The model's own risk counts as so many labels in each bin: one or two labels prove nothing."""
LOWEST_SCORE = -3.0
"""Candidates below it, wrong with odds of 20 to 1, say nothing about where to cut."""
MIN_LABELS = 200
"""From so many labels on, the learned rule decides if it has a threshold that keeps the promise."""
ENOUGH_LABELS = 800
"""From so many labels on, the lack of such a threshold is evidence too: nothing is served."""
CAUTION = 0.5
"""So many standard deviations of the score are taken off it."""
FORGETTING = 0.9998
"""The factor by which old labels lose weight, so that the model follows slow drift."""
LEAST_WEIGHT = 1e-4
"""Least weight of a label."""
PRIOR_VARIANCE = 2.0
MIN_AUDIT_RATE = 0.02
LEAST_DRAWN = 0.01
"""An audit counts for the hits that were not drawn, but for 100 at most."""
MAX_AUDIT_RATE = 0.10
AUDITS_HALF_LIFE = 20
"""The audit rate falls as 1/sqrt(1 + audits / this), down to its minimum."""
ALARM_EVIDENCE = 20.0
"""This e-value raises the alarm: by chance in one of 20 domains at most (Ville's inequality)."""
ALARM_WINDOW = 300
"""The evidence is reset after this number of audits: a long good past must not hide errors."""
NULLS_WANTED = 100
EARLY_NULL_RATE = 0.05
"""The share of exact hits to ask again until ``NULLS_WANTED`` were asked. Sometimes the judge calls
equal answers different. How often decides how many hits can be proven safe, and depends on them."""
NULL_STRENGTH = 50
"""The known noise of the judge counts as so many null audits."""
PRINCIPAL_SHARE = 0.05
"""The largest share of the memory for one of many principals."""
MOST_ENTRY_RECORDS = 10_000
"""Most entries whose answer group and offset are remembered."""

SOFT_GUARDS = frozenset({"substitution"})
"""These guards veto at cold start. Once labels were learned, they are only evidence: where one
answer serves many wordings, four of five exchanged words change nothing, and labels tell where."""
OWN_VETOES = frozenset({"threshold", "unlearned", "unqualified", "alarm", "unrelated"})
"""Vetoes of the rule itself, not of a guard."""
