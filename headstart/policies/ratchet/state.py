"""The pure core: (state, evidence) -> state. Nothing here is ever mutated."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headstart.policies.ratchet.alarm import Alarm
from headstart.policies.ratchet.cold_start import Tripwire, Trust
from headstart.policies.ratchet.memory import Memory, Row, no_memory, remembered
from headstart.policies.ratchet.model import (
    Model,
    agreement,
    cautious_score,
    doubted,
    evidence,
    untrained,
    updated,
)
from headstart.policies.ratchet.settings import (
    AUDITS_HALF_LIFE,
    CAUTION,
    MAX_AUDIT_RATE,
    MIN_AUDIT_RATE,
    MIN_LABELS,
    NULL_STRENGTH,
    UPDATE_EVERY,
    JudgeNoise,
    Promise,
)
from headstart.policies.ratchet.threshold import Curve, draw_curve, no_curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NEGLIGIBLE = 0.02
"""A pair that the model knew to be different teaches nothing, and would drown what does."""
_LEAST_SCORE = -4.0
_LEAST_REMAINDER = 0.2
"""Floor of 1 - leverage: one Newton step says little about a row that fits itself."""


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """Labels by what they were used for."""

    labels: int = 0
    unsure: int = 0
    audits: int = 0
    audits_wrong: int = 0
    nulls: int = 0
    nulls_different: int = 0
    alarms: int = 0


class State(msgspec.Struct, frozen=True):
    """All that a domain has learned, but for single entries' standings."""

    model: Model
    memory: Memory
    pending: tuple[Row, ...]
    """Rows since the last threshold update; they join the memory at the next."""
    curve: Curve
    alarm: Alarm = Alarm()
    alarmed: bool = False
    """Nothing is served until labels enough came after the alarm."""
    lessons: int = 0
    """Pairs learned since the start or the last alarm that no guard had vetoed."""
    since_update: int = 0
    counts: Counts = Counts()
    tripwire: Tripwire = Tripwire()

    @property
    def remembered(self) -> int:
        """Labelled candidates in memory."""
        return len(self.memory) + len(self.pending)


def initial_state() -> State:
    """Return the state of a domain without labels."""
    return State(untrained(), no_memory(), (), no_curve())


def score(state: State, features: NDArray[np.float64], offset: float) -> float:
    """Return the cautious log-odds that the answers are the same."""
    return cautious_score(state.model, features, offset)


def audit_rate(state: State) -> float:
    """Return the share of hits to audit: it falls with the audits made."""
    made = state.counts.audits
    return max(MIN_AUDIT_RATE, MAX_AUDIT_RATE / sqrt(1 + made / AUDITS_HALF_LIFE))


def noise_of(state: State, promise: Promise) -> JudgeNoise:
    """Return the judge's noise, its false disagreement as null audits have shown it."""
    known, counts = promise.judge, state.counts
    beta = (known.false_disagree * NULL_STRENGTH + counts.nulls_different) / (
        NULL_STRENGTH + counts.nulls
    )
    return msgspec.structs.replace(known, false_disagree=min(beta, 0.5))


def learn(state: State, row: Row, promise: Promise, *, vetoed: bool) -> tuple[State, float, float]:
    """Learn one pair; return the state, the residual and the weight for the entry's standing."""
    value = score(state, row.features, row.offset)
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
        lessons=state.lessons + (not vetoed),
        since_update=state.since_update + 1,
    )
    if state.since_update >= UPDATE_EVERY:
        state = redrawn(state, promise)
    return state, residual, weight


def audited(state: State, promise: Promise, *, same: bool) -> State:
    """Count one audit; raise the alarm when the promise is broken beyond chance."""
    counts = state.counts
    counts = msgspec.structs.replace(
        counts, audits=counts.audits + 1, audits_wrong=counts.audits_wrong + (not same)
    )
    alarm = state.alarm.audited(same=same)
    state = msgspec.structs.replace(state, counts=counts, alarm=alarm)
    return alarmed(state) if alarm.raised(_observed(promise.max_error, state, promise)) else state


def alarmed(state: State) -> State:
    """Serve nothing, forget the memory, doubt the model, learn anew."""
    return msgspec.structs.replace(
        state,
        model=doubted(state.model),
        memory=no_memory(),
        pending=(),
        curve=no_curve(),
        alarm=Alarm(),
        alarmed=True,
        lessons=0,
        since_update=0,
        counts=msgspec.structs.replace(state.counts, alarms=state.counts.alarms + 1),
    )


def redrawn(state: State, promise: Promise) -> State:
    """Move what is pending to the memory and draw the threshold curve anew."""
    memory = remembered(state.memory, state.pending)
    curve = _curve(state.model, memory, noise_of(state, promise)) if len(memory) else state.curve
    return msgspec.structs.replace(
        state,
        memory=memory,
        pending=(),
        curve=curve,
        alarmed=state.alarmed and state.lessons < MIN_LABELS,
        since_update=0,
    )


def memory_scores(
    model: Model, memory: Memory, noise: JudgeNoise
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return all remembered candidates' cautious scores and how likely each is the same.

    Each as if its own label had not been learned (one Newton step back: Pregibon 1981). A model
    that saw the labels by which it is judged finds fewer errors there than it will make.
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
    """Return how far the cold-start threshold is trusted, by what near misses have shown."""
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
