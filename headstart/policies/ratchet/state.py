"""The learned state and its model: (state, evidence) -> state, and nothing is ever mutated.

The model is a Bayesian logistic regression whose posterior is updated with each label.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from headstart.policies.gate import SketchLabels
from headstart.policies.ratchet.cold_start import Tripwire, Trust
from headstart.policies.ratchet.evidence import Alarm
from headstart.policies.ratchet.features import PRIOR_MEAN
from headstart.policies.ratchet.settings import (
    AUDITS_HALF_LIFE,
    CAUTION,
    FORGETTING,
    LEAST_WEIGHT,
    MAX_AUDIT_RATE,
    MIN_LABELS,
    NULL_STRENGTH,
    PRIOR_VARIANCE,
    UPDATE_EVERY,
    JudgeNoise,
    Promise,
)
from headstart.policies.ratchet.threshold import (
    Curve,
    Memory,
    Row,
    draw_curve,
    no_curve,
    no_memory,
    remembered,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CERTAIN = 1e-12


Shares = TypeVar("Shares", float, "NDArray[np.float64]")


class Model(msgspec.Struct, frozen=True):
    """The posterior of the weights: ``mean`` f64[d], ``covariance`` f64[d, d]. Never mutated."""

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

    The likelihood is that of a judge who errs, so a "different" where the model is sure counts
    little. Otherwise one wrong label in ten would flatten the model just where it must tell one
    error in a hundred from none.
    """
    probability = float(1 / (1 + np.exp(-(features @ model.mean + offset))))
    residual, weight = evidence(probability, float(same), noise)
    covariance = model.covariance / FORGETTING
    spread = covariance @ features
    shrink = weight / (1 + weight * (features @ spread))
    covariance = covariance - np.outer(spread, spread) * shrink
    return Model(model.mean + (covariance @ features) * residual, covariance), residual, weight


def agreement(same: Shares, noise: JudgeNoise) -> Shares:
    """Return the probability that the judge says "same", by the probability that it is true."""
    return noise.false_agree + (1 - noise.false_agree - noise.false_disagree) * same


def evidence(probability: Shares, same: Shares, noise: JudgeNoise) -> tuple[Shares, Shares]:
    """Return the slope and the expected curvature of the log-likelihood of labels by the score.

    ``same`` is the label of the judge: 1 or 0.
    """
    judged = agreement(probability, noise)
    slope = probability * (1 - probability) * (1 - noise.false_agree - noise.false_disagree)
    variance = judged * (1 - judged) + _CERTAIN
    return slope * (same - judged) / variance, slope * slope / variance + LEAST_WEIGHT


def doubted(model: Model) -> Model:
    """Widen the posterior after an alarm: the model may be wrong by now."""
    return Model(model.mean, model.covariance + 0.5 * np.eye(len(model.mean)))


_NEGLIGIBLE = 0.02
"""A pair that the model knew to be different teaches nothing. Many of them would drown the rest."""
_LEAST_SCORE = -4.0
_LEAST_REMAINDER = 0.2
"""The floor of 1 - leverage: one Newton step says little about a row that fits itself."""


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """The labels by their use."""

    labels: int = 0
    unsure: int = 0
    audits: int = 0
    audits_wrong: int = 0
    nulls: int = 0
    nulls_different: int = 0
    alarms: int = 0


class State(msgspec.Struct, frozen=True):
    """All that a domain has learned, except for the records of single entries."""

    model: Model
    memory: Memory
    pending: tuple[Row, ...]
    """The rows since the last threshold update. They join the memory at the next update."""
    curve: Curve
    alarm: Alarm = Alarm()
    alarmed: bool = False
    """Nothing is served until enough labels came after the alarm."""
    learned_pairs: int = 0
    """Pairs learned since the start or the last alarm that no guard had vetoed."""
    since_update: int = 0
    counts: Counts = Counts()
    tripwire: Tripwire = Tripwire()
    sketches: SketchLabels = SketchLabels()

    @property
    def remembered(self) -> int:
        """The number of labelled candidates in memory."""
        return len(self.memory) + len(self.pending)


def initial_state() -> State:
    """Return the state of a domain without labels."""
    return State(untrained(), no_memory(), (), no_curve())


def counted(state: State, **more: int) -> State:
    """Add to the counts of these names."""
    counts = {name: getattr(state.counts, name) + number for name, number in more.items()}
    return msgspec.structs.replace(state, counts=msgspec.structs.replace(state.counts, **counts))


def audit_rate(state: State, least: float) -> float:
    """Return the share of hits to audit. It falls with the number of audits, down to ``least``."""
    made = state.counts.audits
    return max(least, MAX_AUDIT_RATE / sqrt(1 + made / AUDITS_HALF_LIFE))


def noise_of(state: State, promise: Promise) -> JudgeNoise:
    """Return the noise of the judge, with the false disagreement that null audits have shown."""
    known, counts = promise.judge, state.counts
    beta = (known.false_disagree * NULL_STRENGTH + counts.nulls_different) / (
        NULL_STRENGTH + counts.nulls
    )
    return msgspec.structs.replace(known, false_disagree=min(beta, 0.5))


def learn(state: State, row: Row, promise: Promise, *, vetoed: bool) -> tuple[State, float, float]:
    """Learn one pair; return the state, and the residual and weight for the entry's record."""
    value = cautious_score(state.model, row.features, row.offset)
    noise = noise_of(state, promise)
    model, residual, weight = updated(state.model, row.features, row.offset, noise, same=row.same)
    if not row.same and residual > -_NEGLIGIBLE:
        model, residual, weight = state.model, 0.0, 0.0
    pending = state.pending
    if not vetoed and value > _LEAST_SCORE:
        pending = (*pending, row)
    state = msgspec.structs.replace(
        state,
        model=model,
        pending=pending,
        learned_pairs=state.learned_pairs + (not vetoed),
        since_update=state.since_update + 1,
    )
    if state.since_update >= UPDATE_EVERY:
        state = redrawn(state, promise)
    return state, residual, weight


def audited(state: State, promise: Promise, *, same: bool) -> State:
    """Count one audit; raise the alarm if chance cannot explain that the promise is broken."""
    state = counted(state, audits=1, audits_wrong=int(not same))
    alarm = state.alarm.audited(same=same)
    state = msgspec.structs.replace(state, alarm=alarm)
    return alarmed(state) if alarm.raised(_observed(promise.max_error, state, promise)) else state


def alarmed(state: State) -> State:
    """Return a state that serves nothing, has no memory, doubts its model and starts to learn."""
    return msgspec.structs.replace(
        counted(state, alarms=1),
        model=doubted(state.model),
        memory=no_memory(),
        pending=(),
        curve=no_curve(),
        alarm=Alarm(),
        alarmed=True,
        learned_pairs=0,
        since_update=0,
    )


def redrawn(state: State, promise: Promise) -> State:
    """Move the pending rows to the memory and compute the threshold curve again."""
    memory = remembered(state.memory, state.pending)
    curve = _curve(state.model, memory, noise_of(state, promise)) if len(memory) else state.curve
    return msgspec.structs.replace(
        state,
        memory=memory,
        pending=(),
        curve=curve,
        alarmed=state.alarmed and state.learned_pairs < MIN_LABELS,
        since_update=0,
    )


def memory_scores(
    model: Model, memory: Memory, noise: JudgeNoise
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the cautious scores of all remembered candidates, and the probabilities of "same".

    Each is computed as if its own label was not learned (one Newton step back: Pregibon 1981). A
    model that is tested on labels that it has seen finds fewer errors there than it will make.
    """
    features = memory.features.astype(np.float64)
    means = features @ model.mean + memory.offset
    leverage = np.einsum("ij,ij->i", features @ model.covariance, features)
    same = memory.same.astype(np.float64)
    residuals, weights = evidence(1 / (1 + np.exp(-means)), same, noise)
    means = means - leverage * residuals / np.maximum(1 - leverage * weights, _LEAST_REMAINDER)
    return means - CAUTION * np.sqrt(leverage), 1 / (1 + np.exp(-means))


def _curve(model: Model, memory: Memory, noise: JudgeNoise) -> Curve:
    scores, same = memory_scores(model, memory, noise)
    mass = memory.mass.astype(np.float64)
    return draw_curve(scores, memory.same, mass, 1 - agreement(same, noise), noise)


def trust(state: State, promise: Promise) -> Trust:
    """Return how far the near misses so far let one trust the cold-start threshold."""
    return state.tripwire.trust(
        promise.max_error,
        lambda rate: _observed(min(rate, 1.0), state, promise),
        optimistic=promise.cold_start == "optimistic",
    )


def _observed(rate: float, state: State, promise: Promise) -> float:
    """Return the share of "different" labels to expect among hits of which ``rate`` are wrong."""
    noise = noise_of(state, promise)
    ratio = (1 - noise.unsure_different) / (1 - noise.unsure_same)
    wrong = rate * ratio
    right = 1 - rate
    return (wrong * (1 - noise.false_agree) + right * noise.false_disagree) / (wrong + right)
