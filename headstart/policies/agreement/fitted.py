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
    """How often the judge errs when it is sure, and how often it is not.

    For the correction of an observed share of differing answers (Rogan and Gladen 1978),
    ``e = (observed - beta) / (1 - alpha - beta)``, until null audits measure beta where it runs.
    Answers that differ are unsure more often, so ``e`` of the sure pairs understates that of all:
    the odds of the latter are the odds of ``e`` times ``(1 - unsure) / (1 - unsure_different)``.
    """

    alpha: float
    """Of sure pairs that differ (answers to neighbouring questions): the share called the same."""
    beta: float
    """Of sure pairs that are the same: the share called different."""
    unsure: float
    """Of pairs that are the same: the share about which the judge is not sure."""
    unsure_different: float
    """Of pairs that differ: the same."""


WITH_COSINE = Fit(
    weights=(
        -9.333, 7.78, 2.412, 2.331, -0.589, 0.721, -1.849, 1.594, 2.699, 1.427, -0.325, -0.381,
        2.203, 0.87, -6.496, -5.154,
    ),
    different_to=0.073,
    same_from=0.55,
)  # fmt: skip
WORDS_ALONE = Fit(
    weights=(
        -6.209, 2.608, -0.239, 1.199, -0.483, 2.283, 3.103, 1.727, -0.037, -0.383, 4.615, 0.511,
        -7.363, -5.679,
    ),
    different_to=0.086,
    same_from=0.739,
)  # fmt: skip

FREE_TEXT = ErrorRates(alpha=0.133, beta=0.014, unsure=0.127, unsure_different=0.287)
"""Of texts longer than five words, with a cosine; alpha against neighbours from similarity 0.7."""
CANONICAL = ErrorRates(alpha=0.0, beta=0.0, unsure=0.0, unsure_different=0.0)
"""Of labels, numbers, JSON and tool calls."""
