"""What the user promises, and the constants of the algorithm with their reasons.

The algorithm is described in ``docs/safe-hits.md``.
"""

from __future__ import annotations

from typing import Literal

from headstart.errors import ConfigError
from headstart.policies.agreement.fitted import FREE_TEXT
from headstart.types import Frozen

MARGINS = {0.69: 0.5, 0.84: 1.0, 0.95: 1.64}
"""Standard deviations of margin by one-sided confidence."""


class JudgeNoise(Frozen, frozen=True, kw_only=True):
    """How often the agreement judge errs. Shares of the judgements that it is sure of.

    The defaults are those of the judge that ships, of free text (``docs/agreement.md``).
    """

    false_disagree: float = FREE_TEXT.beta
    """Same answers called different; what is known before null audits have measured it."""
    false_agree: float = FREE_TEXT.alpha
    """Different answers called the same."""
    unsure_same: float = FREE_TEXT.unsure
    """Share of same answers of which it is not sure."""
    unsure_different: float = FREE_TEXT.unsure_different


EXACT_JUDGE = JudgeNoise(false_disagree=0, false_agree=0, unsure_same=0, unsure_different=0)
"""A judge that never errs, as of labels, JSON and tool calls."""


class Promise(Frozen, frozen=True, kw_only=True):
    """The share of wrong answers that a domain is held to. Raises ConfigError."""

    max_error: float = 0.02
    """Share of wrong answers, above 0 and at most 0.5."""
    error_of: Literal["hits", "requests"] = "hits"
    """Of what: semantic hits, or all requests (laxer: it also counts those not served)."""
    confidence: float = 0.84
    """One-sided confidence at each threshold update: 0.69, 0.84 or 0.95."""
    judge: JudgeNoise = JudgeNoise()
    cold_start: Literal["strict", "optimistic"] = "strict"
    """What is served while too few near misses were compared to tell traps from easy traffic:
    near repeats alone, or what the cold-start threshold lets pass."""

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
"""Labelled candidates kept a domain: enough to tell 1 % from 2 %, recent enough to follow.

With 2,000 a target of 1 % served about a fifth less (``docs/safe-hits-measured.md``)."""
UPDATE_EVERY = 50
"""Labels between threshold updates: an update costs about as much as 50 lookups' learning."""
BINS = 24
"""Equal shares of candidates, by score, over which the error is estimated."""
BIN_PRIOR = 2 * 40 / BINS
"""Labels that the model's own risk counts for in each bin: one or two labels prove nothing."""
LOWEST_SCORE = -3.0
"""Candidates that are wrong with odds of 20 to 1 say nothing about where to cut."""
MIN_LABELS = 200
"""Labels from which the learned rule decides if it has a threshold that keeps the promise."""
ENOUGH_LABELS = 800
"""Labels from which the absence of such a threshold is evidence too: then nothing is served."""
CAUTION = 0.5
"""Standard deviations of the score that are taken off it."""
FORGETTING = 0.9998
"""Factor by which old labels lose weight, so the model follows slow drift."""
LEAST_WEIGHT = 1e-4
"""Least weight of a label."""
PRIOR_VARIANCE = 2.0
MIN_AUDIT_RATE = 0.02
LEAST_DRAWN = 0.01
"""An audit stands for the hits that were not drawn, at most for so many."""
MAX_AUDIT_RATE = 0.10
AUDITS_HALF_LIFE = 20
"""The audit rate falls as 1/sqrt(1 + audits / this), down to its minimum."""
ALARM_EVIDENCE = 20.0
"""E-value that raises the alarm: by chance once in 20 domains at most (Ville's inequality)."""
ALARM_WINDOW = 300
"""Audits after which the evidence starts anew, so that a long good past hides nothing."""
NULLS_WANTED = 100
EARLY_NULL_RATE = 0.05
"""Share of exact hits to ask again until so many were: how often the judge calls equal answers
different decides how many hits can be told to be safe, and no constant holds for all answers."""
NULL_STRENGTH = 50
"""Null audits that the judge's measured noise counts for."""
PRINCIPAL_SHARE = 0.05
"""Most of the memory that one of many principals may fill."""
MAX_STANDINGS = 10_000
"""Entries whose answer group and offset are remembered, most recently labelled first."""

SOFT_GUARDS = frozenset({"substitution"})
"""Guards that are obeyed at cold start and weighed as evidence once labels were learned: where one
answer serves many wordings, four of five exchanged words change nothing, and labels tell where."""
OWN_VETOES = frozenset({"threshold", "unlearned", "unqualified", "alarm", "unrelated"})
"""Vetoes that are the rule's own word, not a guard's."""
