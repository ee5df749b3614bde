"""How many semantic hits to expect from an error target: what start-up tells before traffic can."""

from __future__ import annotations

from bisect import bisect_right

_FREE_TEXT = ((0.0, 0.0), (0.01, 0.05), (0.02, 0.20), (0.05, 0.35))
_EXACT = ((0.0, 0.0), (0.005, 0.03), (0.01, 0.14), (0.02, 0.30), (0.05, 0.43))
"""Error target from which a hit rate was reached: the lower of CLINC150's and Banking77's means,
6,000 distinct prompts from cold, at the default confidence (``benchmarks/safe_hits.py``)."""


def expected_hit_rate(max_error: float, *, exact: bool = False) -> float:
    """Return the share of distinct prompts to expect as semantic hits in the first thousands.

    ``exact``: answers are compared exactly (labels, JSON, tool calls), not judged as free text,
    where the judge's own errors are the limit.
    """
    table = _EXACT if exact else _FREE_TEXT
    return table[bisect_right(table, (max_error, 1.0)) - 1][1]
