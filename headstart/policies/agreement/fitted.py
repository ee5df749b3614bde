"""What ``python -m benchmarks.agreement DATA`` fitted and measured: weights, bands, error rates."""

from __future__ import annotations

from headstart.types import Frozen


class Fit(Frozen):
    """A logistic regression over ``likeness.FEATURES`` and its band of doubt."""

    weights: tuple[float, ...]
    different_to: float
    """Up to this probability two texts are judged to differ."""
    same_from: float
    """From this probability on they are judged to say the same; between the two: unsure."""


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


WITH_COSINE = Fit(
    weights=(
        -9.2,
        7.65,
        3.8,
        2.88,
        -0.66,
        0.55,
        -1.97,
        1.45,
        2.7,
        1.33,
        -0.38,
        -0.28,
        2.1,
        0.87,
        -5.82,
        -5.48,
    ),
    different_to=0.2,
    same_from=0.7,
)
WORDS_ALONE = Fit(
    weights=(-5.0, 2.88, -0.66, 0.55, 3, 1.45, 2.7, 1.33, -0.38, -0.28, 2.1, 0.87, -5.82, -5.48),
    different_to=0.2,
    same_from=0.9,
)

FREE_TEXT = ErrorRates(alpha=0.18, beta=0.025, unsure=0.105)
"""Of texts longer than five words."""
CANONICAL = ErrorRates(alpha=0.0, beta=0.0, unsure=0.0)
"""Of labels, numbers, JSON and tool calls."""
