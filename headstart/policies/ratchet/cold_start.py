"""Day one: what may be served before a domain has labels enough.

Every guard must pass and the similarity must reach a threshold that kept the error target on three
public and synthetic streams (``docs/safe-hits.md``). The promise does not cover it.
"""

from __future__ import annotations

from bisect import bisect_right

_THRESHOLDS = ((0.0, 0.98), (0.005, 0.97), (0.01, 0.94), (0.02, 0.91), (0.05, 0.86), (0.10, 0.82))
"""Error target from which a similarity applies."""


def cold_start_threshold(max_error: float) -> float:
    """Return the similarity to require for an error target."""
    return _THRESHOLDS[bisect_right(_THRESHOLDS, (max_error, 1.0)) - 1][1]
