"""Online logistic regression with a Laplace posterior, a rank-one update a label.

Spiegelhalter and Lauritzen 1990; a small forgetting factor makes it follow drift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from headstart.policies.ratchet.features import PRIOR_MEAN
from headstart.policies.ratchet.settings import (
    CAUTION,
    FORGETTING,
    LEAST_WEIGHT,
    PRIOR_VARIANCE,
    JudgeNoise,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


_CERTAIN = 1e-12


Shares = TypeVar("Shares", float, "NDArray[np.float64]")


class Model(msgspec.Struct, frozen=True):
    """Posterior of the weights: ``mean`` f64[d], ``covariance`` f64[d, d]. Never mutated."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


def untrained() -> Model:
    """Return the sceptical prior: similarity helps, and nothing is trusted yet."""
    return Model(PRIOR_MEAN.copy(), np.eye(len(PRIOR_MEAN)) * PRIOR_VARIANCE)


def cautious_score(model: Model, features: NDArray[np.float64], offset: float) -> float:
    """Return the log-odds that the answers are the same, less the uncertainty."""
    variance = features @ model.covariance @ features
    return float(features @ model.mean + offset - CAUTION * variance**0.5)


def updated(
    model: Model, features: NDArray[np.float64], offset: float, noise: JudgeNoise, *, same: bool
) -> tuple[Model, float, float]:
    """Learn one label; return the model, the label's residual and its weight.

    The likelihood is that of a judge who errs, so a "different" where the model is sure counts for
    little: without it, one label in ten that is wrong would flatten the model just where it must
    tell one error in a hundred from none.
    """
    probability = float(1 / (1 + np.exp(-(features @ model.mean + offset))))
    residual, weight = evidence(probability, float(same), noise)
    covariance = model.covariance / FORGETTING
    spread = covariance @ features
    shrink = weight / (1 + weight * (features @ spread))
    covariance = covariance - np.outer(spread, spread) * shrink
    return Model(model.mean + (covariance @ features) * residual, covariance), residual, weight


def agreement(same: Shares, noise: JudgeNoise) -> Shares:
    """Return how likely the judge calls answers the same that are so with this probability."""
    return noise.false_agree + (1 - noise.false_agree - noise.false_disagree) * same


def evidence(probability: Shares, same: Shares, noise: JudgeNoise) -> tuple[Shares, Shares]:
    """Return the slope and the expected curvature of labels' log-likelihood by the score.

    ``same`` is what the judge said: 1 or 0.
    """
    judged = agreement(probability, noise)
    slope = probability * (1 - probability) * (1 - noise.false_agree - noise.false_disagree)
    variance = judged * (1 - judged) + _CERTAIN
    return slope * (same - judged) / variance, slope * slope / variance + LEAST_WEIGHT


def doubted(model: Model) -> Model:
    """Widen the posterior after an alarm: what was learned may no longer hold."""
    return Model(model.mean, model.covariance + 0.5 * np.eye(len(model.mean)))
