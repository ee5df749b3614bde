"""Day one: what may be served before a domain has labels enough.

Every guard must pass and the similarity must reach a threshold, chosen on the first 4,000 requests
of CLINC150, Banking77 and the synthetic slots, two orderings each: on none of them did the exact
one-sided 95 % lower bound of the error exceed the target. At the thresholds the error was 0 / 1.1 /
0 % for a target of 1 %, 0.7 / 2.5 / 0 % for 2 % and 0.5 / 3.9 / 0.2 % for 5 %: Banking77's own
labels err about once in a hundred. The promise does not cover the cold start.
"""

from __future__ import annotations

from bisect import bisect_right

_THRESHOLDS = ((0.0, 0.98), (0.005, 0.97), (0.01, 0.94), (0.02, 0.90), (0.05, 0.86), (0.10, 0.82))
"""Error target from which a similarity applies."""


def cold_start_threshold(max_error: float) -> float:
    """Return the similarity to require for an error target."""
    return _THRESHOLDS[bisect_right(_THRESHOLDS, (max_error, 1.0)) - 1][1]
