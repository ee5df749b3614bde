"""The cold start: the hits that may be served, and to be expected, before there are enough labels.

Every guard must pass and the similarity must reach a threshold, chosen on the first 4,000 requests
of CLINC150, Banking77 and the synthetic slots, two orderings each: on none of them did the exact
one-sided 95 % lower bound of the error exceed the target. At the thresholds the error was 0 / 1.1 /
0 % for a target of 1 %, 0.7 / 2.5 / 0 % for 2 % and 0.5 / 3.9 / 0.2 % for 5 %: Banking77's own
labels err about once in a hundred. The promise does not cover the cold start.

Traffic full of near misses is not like these sets. So the threshold is not trusted blindly: misses
whose neighbour was nearly similar enough are compared anyway. The share of them that had another
answer decides whether the threshold holds, is raised, or nothing is served (``Tripwire``).
"""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum
from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

_THRESHOLDS = ((0.005, 0.97), (0.01, 0.94), (0.02, 0.90), (0.05, 0.86), (0.10, 0.82))
"""The least error target for each similarity. For smaller targets no similarity is enough."""
STRICT = 0.98
"""The similarity that a hit needs while too few near misses were compared."""
BAND = 0.10
"""A miss within this distance below the threshold tells something about the hits above it."""
ENOUGH_COMPARED = 15
"""After so many near misses their share of different answers is believed."""
DOUBTFUL = 0.05
"""Above this share of different answers the threshold is raised."""
RAISED_BY = 0.04
TRAPS = 0.20
"""Above this share nothing is served: easy traffic showed 0 to 0.15, traps 0.55 to 0.90."""
DOUBTFUL_ERRORS, TRAPS_ERRORS = 2.5, 5.0
"""Both shares as multiples of a lax error target: at 10 % less similar pairs are compared."""


class Trust(StrEnum):
    """How far the cold-start threshold is trusted."""

    STRICT = "strict"
    """Too few near misses were compared: only near repeats are served."""
    FULL = "full"
    RAISED = "raised"
    """Some near misses had other answers: the threshold is higher by ``RAISED_BY``."""
    NONE = "none"
    """Many near misses had other answers: nothing is served."""


class Tripwire(Frozen, frozen=True, kw_only=True, array_like=True):
    """Near misses that were compared, and how many of them had another answer."""

    compared: int = 0
    different: int = 0

    @property
    def share(self) -> float:
        """The share of different answers, smoothed."""
        return (self.different + 0.5) / (self.compared + 2)

    def taught(self, *, same: bool) -> Tripwire:
        """Count one more comparison."""
        return Tripwire(compared=self.compared + 1, different=self.different + (not same))

    def trust(
        self, max_error: float, seen: Callable[[float], float], *, optimistic: bool = False
    ) -> Trust:
        """Return how far to trust the threshold of an error target.

        ``seen`` maps the true share of different answers to the share that the judge would find.
        ``optimistic`` trusts the threshold fully until enough were compared.
        """
        if self.compared < ENOUGH_COMPARED:
            return Trust.FULL if optimistic else Trust.STRICT
        if self.share > seen(max(TRAPS, TRAPS_ERRORS * max_error)):
            return Trust.NONE
        doubtful = max(DOUBTFUL, DOUBTFUL_ERRORS * max_error)
        return Trust.RAISED if self.share > seen(doubtful) else Trust.FULL


def cold_start_threshold(max_error: float, trust: Trust = Trust.FULL) -> float | None:
    """Return the similarity to require for an error target; None: nothing may be served."""
    place = bisect_right(_THRESHOLDS, (max_error, 1.0))
    if not place or trust is Trust.NONE:
        return None
    threshold = _THRESHOLDS[place - 1][1]
    if trust is Trust.STRICT:
        return STRICT
    return min(round(threshold + RAISED_BY, 2), STRICT) if trust is Trust.RAISED else threshold


def is_near_miss(similarity: float, max_error: float) -> bool:
    """Tell whether a refused neighbour is similar enough to say something about hits."""
    threshold = cold_start_threshold(max_error)
    return threshold is not None and similarity >= threshold - BAND


_FREE_TEXT = ((0.0, 0.0), (0.01, 0.07), (0.015, 0.13), (0.02, 0.16), (0.05, 0.38))
_EXACT = ((0.0, 0.0), (0.005, 0.04), (0.01, 0.16), (0.02, 0.29), (0.05, 0.43))
"""The hit rates that were reached from each error target on: the lower of the means of CLINC150 and
Banking77, three orderings of 6,000 distinct prompts from cold, at the default confidence
(``docs/evidence/safe-hits-table.json``). Orderings differ: at 2 % of free text, 1 to 34 %."""


def expected_hit_rate(max_error: float, *, exact: bool = False) -> float:
    """Return the share of distinct prompts to expect as semantic hits in the first thousands.

    ``exact``: answers are compared exactly (labels, JSON, tool calls). For free text the errors of
    the judge are the limit.
    """
    table = _EXACT if exact else _FREE_TEXT
    return table[bisect_right(table, (max_error, 1.0)) - 1][1]
