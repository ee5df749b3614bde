"""How many semantic hits to expect from an error target: what start-up tells before traffic can."""

from __future__ import annotations

from bisect import bisect_right

_FREE_TEXT = ((0.0, 0.0), (0.01, 0.07), (0.015, 0.13), (0.02, 0.16), (0.05, 0.38))
_EXACT = ((0.0, 0.0), (0.005, 0.04), (0.01, 0.16), (0.02, 0.29), (0.05, 0.43))
"""Error target from which a hit rate was reached: the lower of CLINC150's and Banking77's means,
three orderings of 6,000 distinct prompts from cold, at the default confidence
(``docs/evidence/safe-hits-table.json``). Orderings differ: at 2 % of free text, 1 to 34 %."""


def expected_hit_rate(max_error: float, *, exact: bool = False) -> float:
    """Return the share of distinct prompts to expect as semantic hits in the first thousands.

    ``exact``: answers are compared exactly (labels, JSON, tool calls), not judged as free text,
    where the judge's own errors are the limit.
    """
    table = _EXACT if exact else _FREE_TEXT
    return table[bisect_right(table, (max_error, 1.0)) - 1][1]
