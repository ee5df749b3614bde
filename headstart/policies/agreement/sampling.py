"""How probably a miss's answer is compared with its neighbour's: it depends on the CPU left.

A comparison may need the encoding of an answer, which costs more than all the rest of a miss. While
there is CPU enough, nearly all pairs are compared. Otherwise the pairs near the boundary between
serving and not serving are more probable than the others, because only they tell where to cut. The
probability never depends on the answers, and a label counts for the pairs that were not drawn: so
fewer labels teach the same, only slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.decisions import Rule
from headstart.policies.ratchet.settings import LEAST_DRAWN, is_near_miss

if TYPE_CHECKING:
    from headstart.decisions import Verdict

UNLIKELY_SCORE = -4.0
"""Log-odds of pairs whose answers differ in 98 of 100 cases, far from any threshold."""
UNLIKELY_SHARE = 0.2
"""Share of these pairs that is compared at most."""
NEAR_SCORE = 2.0
"""Log-odds below the threshold from which a pair tells something about where to cut."""
PLENTY = 0.5
"""From this part of the budget on, no pair is left out for want of CPU."""
FAR_POWER = 3
"""How much faster the probability of other pairs falls when the budget runs low."""


def comparison_share(verdict: Verdict, max_error: float, left: float) -> float:
    """Return the probability with which a miss is compared.

    ``left`` is the part of the CPU budget that is left. Without any, no pair is compared. All near
    misses of the cold start have one probability, because their plain share is what counts.
    """
    if left <= 0:
        return 0.0
    far, most = _distance(verdict, max_error)
    share = min(1.0, left / PLENTY) ** (FAR_POWER if far else 1)
    return max(most * share, LEAST_DRAWN)


def _distance(verdict: Verdict, max_error: float) -> tuple[bool, float]:
    """Return whether a pair is far from the boundary, and its probability with CPU enough."""
    if verdict.rule is not Rule.LEARNED:
        return not is_near_miss(verdict.similarity, max_error), 1.0
    score = verdict.score or 0.0
    boundary = 0.0 if verdict.threshold is None else verdict.threshold
    return score < boundary - NEAR_SCORE, UNLIKELY_SHARE if score < UNLIKELY_SCORE else 1.0
