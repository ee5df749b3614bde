"""A learning domain: the thin mutable holder of a ``State`` and its entries' standings."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headstart.decisions import LabelSource, Rule
from headstart.policies.ratchet import snapshot
from headstart.policies.ratchet.cold_start import Trust, cold_start_threshold, is_near_miss
from headstart.policies.ratchet.features import NAMES, VERSION, unpack_features
from headstart.policies.ratchet.memory import Row
from headstart.policies.ratchet.settings import (
    EARLY_NULL_RATE,
    ENOUGH_LABELS,
    LEAST_DRAWN,
    MIN_LABELS,
    NULLS_WANTED,
    OWN_VETOES,
    SOFT_GUARDS,
)
from headstart.policies.ratchet.standings import Standings
from headstart.policies.ratchet.state import (
    audit_rate,
    audited,
    initial_state,
    learn,
    memory_scores,
    noise_of,
    redrawn,
    score,
    trust,
)
from headstart.types import Frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headstart.decisions import Label
    from headstart.policies.ratchet.settings import Promise
    from headstart.policies.ratchet.standings import Standing
    from headstart.policies.ratchet.state import State


_COMPARED = (LabelSource.MISS, LabelSource.AUDIT)


class Change(Frozen, frozen=True, kw_only=True):
    """What one label changed."""

    used: bool = True
    """False for a label of another version, or one that says nothing new."""
    alarm: bool = False
    """The alarm was raised by it."""
    redrawn: bool = False
    """The threshold was drawn anew."""
    rule: Rule = Rule.COLD_START
    """The rule in force after it."""
    threshold: float | None = None
    """The threshold in force after it: of the score, or at cold start of the similarity."""
    trust: Trust = Trust.STRICT
    """How far the cold-start threshold is trusted after it."""


class Status(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """How a domain stands, for status pages, reports and explanations."""

    version: str
    labels: int
    unsure: int
    candidates: int
    """Labelled candidates in memory."""
    rule: Rule
    threshold: float | None
    """Of the score; at cold start of the similarity; None: nothing qualifies."""
    trust: Trust
    """How far the cold-start threshold is trusted."""
    near_misses: int
    """Misses compared whose neighbour was nearly similar enough for the cold start."""
    near_misses_different: int
    """Those of them that had another answer: they decide about ``trust``."""
    alarm: bool
    alarms: int
    audits: int
    audits_wrong: int
    nulls: int
    false_disagree: float
    """The judge's share of false disagreement, as null audits have shown it."""
    serves: float
    """Share of the remembered candidates that the rule in force serves."""
    cold_start_serves: float
    """Share that the cold-start rule would have served; above ``serves``: it was too lax here."""
    error: float | None
    """Estimated share of wrong answers among what is served."""
    bound: float | None
    """Its upper bound, with the promise's confidence."""


class Domain:
    """What one learning domain knows. Not thread-safe; applying labels is deterministic.

    ``prior`` is another domain's snapshot to start from: what it learned, but for single entries.
    Raises SnapshotError when it is of another version.
    """

    def __init__(
        self, promise: Promise, prior: bytes | None = None, *, version: str = VERSION
    ) -> None:
        self.promise = promise
        self.version = version
        self._standings = Standings()
        self._state: State = initial_state()
        if prior is not None:
            self._state, _ = snapshot.load(prior, version)
            self._state = redrawn(self._state, promise)

    @classmethod
    def restore(cls, promise: Promise, data: bytes, *, version: str = VERSION) -> Domain:
        """Return the domain whose ``snapshot`` this is.

        Raises SnapshotError where its labels, applied anew, would lead to another state.
        """
        domain = cls(promise, version=version)
        domain._state, domain._standings = snapshot.load(data, version, exact=True)
        return domain

    def snapshot(self) -> bytes:
        """Serialise everything; ``restore`` continues exactly where this one stands."""
        return snapshot.dump(self._state, self._standings, self.version)

    @property
    def rule(self) -> Rule:
        """The rule in force. After an alarm it is never again the cold-start rule."""
        labels = self._state.lessons
        if self._state.counts.alarms or labels >= ENOUGH_LABELS:
            return Rule.LEARNED
        if labels >= MIN_LABELS and self._learned_threshold(self.promise.max_error) is not None:
            return Rule.LEARNED
        return Rule.COLD_START

    @property
    def labels(self) -> int:
        """Number of labels counted so far, those that the judge was unsure of included."""
        return self._state.counts.labels

    @property
    def trust(self) -> Trust:
        """How far the cold-start threshold is trusted."""
        return trust(self._state, self.promise)

    @property
    def alarmed(self) -> bool:
        """True from an alarm until labels enough came after it: nothing may be served."""
        return self._state.alarmed

    def threshold(self, max_error: float | None = None) -> float | None:
        """Return what the score (at cold start: the similarity) must reach; None: serve nothing.

        ``max_error`` may only be stricter than the promise's.
        """
        target = self.promise.max_error if max_error is None else max_error
        target = min(target, self.promise.max_error)
        if self._state.alarmed:
            return None
        if self.rule is Rule.COLD_START:
            return cold_start_threshold(target, self.trust)
        return self._learned_threshold(target)

    def _learned_threshold(self, target: float) -> float | None:
        curve = self._state.curve
        if self.promise.error_of == "requests":
            return curve.threshold_of_requests(target, self.promise.margin)
        return curve.threshold(target, self.promise.margin)

    def audit_rate(self) -> float:
        """Return the share of hits to audit now."""
        return audit_rate(self._state)

    def null_rate(self) -> float:
        """Return the share of exact hits to ask again now, beside what is always asked."""
        return EARLY_NULL_RATE if self._state.counts.nulls < NULLS_WANTED else 0.0

    def standing(self, entry: str) -> Standing:
        """Return an entry's answer group and offset."""
        return self._standings.of(entry)

    def score(self, features: NDArray[np.float64], entry: str) -> float:
        """Return the log-odds that an entry's answer is the same, less the uncertainty."""
        return score(self._state, features, self._standings.of(entry).offset)

    def contributions(self, features: bytes) -> dict[str, float]:
        """Return each feature's share of the score, largest first.

        ``uncertainty`` is what caution took off; the entry's own offset is not among them.
        """
        row = unpack_features(features)
        shares = row * self._state.model.mean
        named = dict(zip(NAMES, shares.tolist(), strict=True))
        named["uncertainty"] = score(self._state, row, 0.0) - float(shares.sum())
        return dict(sorted(named.items(), key=lambda item: -abs(item[1])))

    def apply(self, label: Label) -> Change:
        """Learn one label. Labels must come in the store's order."""
        before = self._state
        used = self._apply(label)
        state = self._state
        return Change(
            used=used,
            alarm=state.counts.alarms > before.counts.alarms,
            redrawn=state.curve is not before.curve,
            rule=self.rule,
            threshold=self.threshold(),
            trust=self.trust,
        )

    def _apply(self, label: Label) -> bool:
        if label.source is LabelSource.NULL:
            return self._count_null(label)
        if label.version != self.version:
            return False
        self._count(label)
        if label.same is None:
            return False
        if label.source is LabelSource.AUDIT:
            self._state = audited(self._state, self.promise, same=label.same)
        row = Row(
            features=unpack_features(label.features),
            same=label.same,
            offset=self._standings.of(label.entry).offset,
            mass=1 / max(label.drawn, LEAST_DRAWN),
            similarity=label.similarity,
            principal=_hashed(label.principal),
        )
        self._count_near_miss(label)
        self._state, residual, weight = learn(
            self._state, row, self.promise, vetoed=_by_guard(label.veto)
        )
        if weight:
            self._standings.learn(label.entry, residual, weight)
        if label.source is LabelSource.MISS and label.stored and label.same:
            self._standings.join(label.id, label.entry)
        return True

    def _count(self, label: Label) -> None:
        counts = self._state.counts
        counts = msgspec.structs.replace(
            counts, labels=counts.labels + 1, unsure=counts.unsure + (label.same is None)
        )
        self._state = msgspec.structs.replace(self._state, counts=counts)

    def _count_near_miss(self, label: Label) -> None:
        """Count a compared miss, or an audited hit, that says how far the cold start may go.

        People's words are not counted: they choose on which answers to say them.
        """
        if label.same is None or label.source not in _COMPARED or _by_guard(label.veto):
            return
        if is_near_miss(label.similarity, self.promise.max_error):
            tripwire = self._state.tripwire.taught(same=label.same)
            self._state = msgspec.structs.replace(self._state, tripwire=tripwire)

    def _count_null(self, label: Label) -> bool:
        if label.same is None:
            return False
        counts = self._state.counts
        counts = msgspec.structs.replace(
            counts,
            nulls=counts.nulls + 1,
            nulls_different=counts.nulls_different + (not label.same),
        )
        self._state = msgspec.structs.replace(self._state, counts=counts)
        return True

    def status(self) -> Status:
        """Return how the domain stands. Takes about as long as a threshold update."""
        state, counts, threshold = self._state, self._state.counts, self.threshold()
        serves, cold, error, bound = self._shares(threshold)
        return Status(
            version=self.version,
            labels=counts.labels,
            unsure=counts.unsure,
            candidates=state.remembered,
            rule=self.rule,
            threshold=threshold,
            trust=self.trust,
            near_misses=state.tripwire.compared,
            near_misses_different=state.tripwire.different,
            alarm=state.alarmed,
            alarms=counts.alarms,
            audits=counts.audits,
            audits_wrong=counts.audits_wrong,
            nulls=counts.nulls,
            false_disagree=noise_of(state, self.promise).false_disagree,
            serves=serves,
            cold_start_serves=cold,
            error=error,
            bound=bound,
        )

    def _shares(self, threshold: float | None) -> tuple[float, float, float | None, float | None]:
        """Return shares served now and at cold start, the error and its bound."""
        memory, curve = self._state.memory, self._state.curve
        total = float(memory.mass.sum())
        if not total:
            return 0.0, 0.0, None, None
        similarity = cold_start_threshold(self.promise.max_error, self.trust)
        similar = memory.similarity >= (2.0 if similarity is None else similarity)
        cold = float(memory.mass[similar].sum()) / total
        if self.rule is Rule.COLD_START:
            return cold, cold, None, None
        if threshold is None:
            return 0.0, cold, None, None
        scores, _ = memory_scores(self._state.model, memory, noise_of(self._state, self.promise))
        place = int(np.flatnonzero(curve.cuts >= threshold)[-1])
        error = float(curve.errors[place])
        bound = error + self.promise.margin * float(curve.deviations[place])
        return float(memory.mass[scores >= threshold].sum()) / total, cold, error, bound


def _by_guard(veto: str | None) -> bool:
    """Tell a guard that the learned rule obeys from all that it decides itself."""
    return veto is not None and veto not in OWN_VETOES | SOFT_GUARDS


def _hashed(principal: str) -> int:
    if not principal:
        return 0
    return int.from_bytes(blake2b(principal.encode(), digest_size=8).digest(), "big", signed=True)
