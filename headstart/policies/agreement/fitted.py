"""What ``python -m benchmarks.agreement DATA`` fitted and measured: weights, band, error rates."""

from __future__ import annotations

from headstart.types import Frozen


class ErrorRates(Frozen):
    """How often the judge errs, for ``e = (e_observed - beta) / (1 - alpha - beta)``.

    Sources: Rogan and Gladen 1978. Shares of the pairs about which the judge was sure.
    """

    alpha: float
    """Of answers that differ (to neighbouring questions): the share called the same."""
    beta: float
    """Of answers that are the same: the share called different."""
    unsure: float
    """Of answers that are the same: the share about which the judge is not sure."""


WEIGHTS = (
    -10.465, 11.81, 1.808, -0.005, 0.074, 0.972, 1.049, 1.612, 0.741, -0.43, -0.376, 0.0, 0.659,
    0.96,
)  # fmt: skip
"""Of ``likeness.FEATURES``, with the cosine."""
WEIGHTS_OF_WORDS = (
    -5.102, 0.0, -0.655, -0.733, 0.201, 10.733, 2.793, 2.417, 1.332, -0.032, -0.172, 0.0, 0.643,
    0.561,
)  # fmt: skip
"""Of ``likeness.FEATURES``, without the cosine."""

DIFFERENT_TO, SAME_FROM = 0.2, 0.7
"""The band of doubt: up to the first probability different, from the second the same."""
SAME_FROM_WORDS = 0.9

FREE_TEXT = ErrorRates(alpha=0.18, beta=0.025, unsure=0.105)
"""Of texts longer than five words."""
CANONICAL = ErrorRates(alpha=0.0, beta=0.0, unsure=0.0)
"""Of labels, numbers, JSON and tool calls."""
