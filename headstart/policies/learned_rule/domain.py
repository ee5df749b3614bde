"""A learning domain: everything that is learned from the requests of one scope, path and route.

``Domain`` has a ``DomainState`` and the statistics of its entries. A ``DomainState`` is immutable:
each label makes a new one from the old one. A label says whether the answers of a pair are the same
(``Domain.apply``):

1. It is counted, as an audit, as a near miss, and for the gate. If audits find too many wrong
   answers, the alarm is raised, and nothing is served.
2. The model learns it, and the entry's own offset changes.
3. After ``UPDATE_EVERY`` labels, all pairs are scored again and give a new error curve. It says
   which threshold of the score meets the error target (``Domain.threshold``).

A snapshot saves a domain; a program of another snapshot version refuses to read it.
"""

from __future__ import annotations

from contextlib import contextmanager
from hashlib import blake2b
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from headstart.decisions import Gate, Label, LabelSource, Rule, Verdict
from headstart.errors import HeadstartError
from headstart.policies.gate import NOTHING_SERVED, GateCounts, SketchLabels, gate_of
from headstart.policies.learned_rule.error_limit import (
    AUDITS_HALF_LIFE,
    EARLY_NULL_RATE,
    ENOUGH_LABELS,
    FIRST_REPEAT_RATE,
    FIRST_REPEATS,
    LEAST_DRAW_PROBABILITY,
    MAX_AUDIT_RATE,
    MIN_AUDIT_RATE,
    MIN_LABELS,
    MOST_REPEATS,
    NULLS_WANTED,
    OWN_VETOES,
    PRIOR_VARIANCE,
    REPEAT_RATE,
    REPEAT_SCORE,
    REPEATS_FROM,
    REPEATS_TARGET,
    SOFT_GUARDS,
    UPDATE_EVERY,
    ErrorLimit,
    JudgeNoise,
    NearMissCounts,
    Trust,
    cold_start_threshold,
    is_near_miss,
    least_score,
)
from headstart.policies.learned_rule.features import (
    NAMES,
    PRIOR_MEAN,
    VERSION,
    EntryStatsTable,
    LabelledRow,
    Posterior,
    StatsRow,
    cautious_score,
    unpack_features,
    update_posterior,
)
from headstart.policies.learned_rule.threshold import (
    Alarm,
    ErrorCurve,
    LabelTable,
    curve_of,
    memory_scores,
    no_curve,
    no_memory,
    remember_rows,
)
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from headstart.policies.learned_rule.features import EntryStats


_NEGLIGIBLE = 0.02
"""A pair with a smaller residual does not change the model, which has predicted it well. There are
many such pairs; together they would outweigh the others."""
_LEAST_SCORE = -4.0


# --- the state and its changes --------------------------------------------------------------------


class LabelCounts(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of labels of each use."""

    labels: int = 0
    unsure: int = 0
    audits: int = 0
    audits_wrong: int = 0
    nulls: int = 0
    nulls_different: int = 0
    alarms: int = 0
    nulls_unsure: int = 0


class DomainState(msgspec.Struct, frozen=True):
    """Everything that a domain has learned, except the statistics of single entries."""

    model: Posterior
    memory: LabelTable
    pending: tuple[LabelledRow, ...]
    """The rows since the last threshold update. They join the memory at the next update."""
    curve: ErrorCurve
    alarm: Alarm = Alarm()
    alarmed: bool = False
    """True from an alarm until there are enough new labels. Meanwhile nothing is served."""
    learned_pairs: int = 0
    """Pairs without a guard's veto that were learned since the start or the last alarm."""
    since_update: int = 0
    counts: LabelCounts = LabelCounts()
    near_misses: NearMissCounts = NearMissCounts()
    same_words: NearMissCounts = NearMissCounts()
    """Compared pairs with the same words, since the start or the last alarm."""
    sketches: SketchLabels = SketchLabels()

    @property
    def remembered(self) -> int:
        """The number of labelled candidates in memory."""
        return len(self.memory) + len(self.pending)


def initial_state() -> DomainState:
    """Return the state of a domain without labels: its model is the prior."""
    prior = Posterior(PRIOR_MEAN.copy(), np.eye(len(PRIOR_MEAN)) * PRIOR_VARIANCE)
    return DomainState(prior, no_memory(), (), no_curve())


def add_counts(state: DomainState, **more: int) -> DomainState:
    """Add to the counts of these names."""
    counts = {name: getattr(state.counts, name) + number for name, number in more.items()}
    return msgspec.structs.replace(state, counts=msgspec.structs.replace(state.counts, **counts))


def noise_of(state: DomainState, error_limit: ErrorLimit) -> JudgeNoise:
    """Return the error rates of the judge. Null audits have measured its false disagreement."""
    return error_limit.judge.measured(state.counts.nulls, state.counts.nulls_different)


def learn(
    state: DomainState, row: LabelledRow, error_limit: ErrorLimit, *, vetoed: bool
) -> tuple[DomainState, float, float]:
    """Learn one pair; return the state, and the residual and weight for the entry's statistics."""
    value = cautious_score(state.model, row.features, row.offset)
    noise = noise_of(state, error_limit)
    model, residual, weight = update_posterior(state.model, row, noise)
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
        state = redraw_curve(state, error_limit)
    return state, residual, weight


def count_audit(state: DomainState, error_limit: ErrorLimit, *, same: bool) -> DomainState:
    """Count one audit; raise the alarm if the error target is missed by more than chance."""
    state = add_counts(state, audits=1, audits_wrong=int(not same))
    alarm = state.alarm.count_audit(same=same)
    state = msgspec.structs.replace(state, alarm=alarm)
    explained = _judged_different(error_limit.max_error, state, error_limit)
    return raise_alarm(state) if alarm.raised(explained) else state


def count_near_miss(state: DomainState, label: Label, error_limit: ErrorLimit) -> DomainState:
    """Count a compared miss or an audited hit that is near the cold-start threshold.

    Pairs with the same words are counted by themselves. The verdicts of people do not count,
    because people choose which answers they judge.
    """
    compared = label.source in (LabelSource.MISS, LabelSource.AUDIT)
    if label.same is None or not compared or _is_hard_guard(label.veto):
        return state
    near_misses, same_words = state.near_misses, state.same_words
    if label.same_words:
        same_words = same_words.with_label(same=label.same)
    elif is_near_miss(label.similarity, error_limit.max_error):
        near_misses = near_misses.with_label(same=label.same)
    if label.veto in SOFT_GUARDS:
        near_misses = near_misses.with_vetoed(same=label.same)
    return msgspec.structs.replace(state, near_misses=near_misses, same_words=same_words)


def count_sketch(state: DomainState, label: Label) -> DomainState:
    """Count a label for the gate. A pair that a guard vetoed cannot be a hit."""
    if label.sketch is None:
        return state
    may_hit = bool(label.same) and not _is_hard_guard(label.veto)
    sketches = state.sketches.with_label(label.sketch, same=may_hit)
    return msgspec.structs.replace(state, sketches=sketches)


def _is_hard_guard(veto: str | None) -> bool:
    """Tell whether a veto comes from a guard that the learned rule always obeys."""
    return veto is not None and veto not in OWN_VETOES | SOFT_GUARDS


def raise_alarm(state: DomainState) -> DomainState:
    """Return a state that serves nothing and learns from the beginning.

    The memory is empty. The model stays, but with a larger variance.
    """
    model = state.model
    wider = model.covariance + 0.5 * np.eye(len(model.mean))
    return msgspec.structs.replace(
        add_counts(state, alarms=1),
        model=Posterior(model.mean, wider),
        memory=no_memory(),
        pending=(),
        curve=no_curve(),
        alarm=Alarm(),
        alarmed=True,
        learned_pairs=0,
        same_words=NearMissCounts(),
        since_update=0,
    )


def redraw_curve(state: DomainState, error_limit: ErrorLimit) -> DomainState:
    """Move the pending rows to the memory and compute the threshold curve again."""
    memory, curve = remember_rows(state.memory, state.pending), state.curve
    if len(memory):
        curve = curve_of(state.model, memory, noise_of(state, error_limit))
    return msgspec.structs.replace(
        state,
        memory=memory,
        pending=(),
        curve=curve,
        alarmed=state.alarmed and state.learned_pairs < MIN_LABELS,
        since_update=0,
    )


def _judged_different(rate: float, state: DomainState, error_limit: ErrorLimit) -> float:
    """Return the share of "different" among the labels of hits of which ``rate`` are wrong.

    A wrong hit gets a label with the probability 1 - unsure_different, a right one with
    1 - unsure_same. Of the labels of wrong hits, the share 1 - false_agree says "different"; of
    the labels of right hits, the share false_disagree. (``wrong`` and ``right`` are divided by 1 -
    unsure_same.)
    """
    noise = noise_of(state, error_limit)
    wrong = rate * ((1 - noise.unsure_different) / (1 - noise.unsure_same))
    right = 1 - rate
    different = wrong * (1 - noise.false_agree) + right * noise.false_disagree
    return different / (wrong + right)


# --- snapshots ------------------------------------------------------------------------------------

SNAPSHOT_FORMAT = 1
RARELY_SERVED = 0.01
"""The share of the hits that may be less similar than ``Domain.least_served``."""


class SnapshotError(HeadstartError, ValueError):
    """A snapshot that cannot be used. The message says why, and what to do."""


class _Array(msgspec.Struct, array_like=True):
    type: str
    shape: tuple[int, ...]
    data: bytes


class _SnapshotHead(msgspec.Struct):
    format: int
    version: str
    features: tuple[str, ...]


class _Snapshot(_SnapshotHead):
    """The encoded fields. ``name=`` is the name in the file, if the field was renamed later."""

    model: tuple[_Array, ...]
    memory: tuple[_Array, ...]
    pending: tuple[_Array, ...]
    curve: tuple[_Array, ...]
    alarm: Alarm
    alarmed: bool
    learned_pairs: int = msgspec.field(name="lessons")
    since_update: int
    counts: LabelCounts
    entries: dict[str, StatsRow] = msgspec.field(name="standings")
    sketches: SketchLabels = SketchLabels()
    near_misses: NearMissCounts | None = msgspec.field(name="tripwire", default=None)
    """None in snapshots from before near misses were counted."""
    same_words: NearMissCounts = NearMissCounts()


def dump_snapshot(state: DomainState, entries: EntryStatsTable, version: str) -> bytes:
    """Serialise a state and its entries. It takes about 70 bytes a candidate and 80 an entry."""
    return msgspec.msgpack.encode(
        _Snapshot(
            format=SNAPSHOT_FORMAT,
            version=version,
            features=NAMES,
            model=_packed(state.model),
            memory=_packed(state.memory),
            pending=_packed(remember_rows(no_memory(), state.pending)),
            curve=_packed(state.curve),
            alarm=state.alarm,
            alarmed=state.alarmed,
            learned_pairs=state.learned_pairs,
            since_update=state.since_update,
            counts=state.counts,
            entries=entries.rows(),
            sketches=state.sketches,
            near_misses=state.near_misses,
            same_words=state.same_words,
        )
    )


@contextmanager
def _decoding() -> Iterator[None]:
    """Raise SnapshotError for what a decoder raises."""
    try:
        yield
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise SnapshotError(
            f"the learned state is damaged, or headstart tune did not write it: {error}"
        ) from error


def load_snapshot(
    data: bytes, version: str, *, exact: bool = False
) -> tuple[DomainState, EntryStatsTable]:
    """Read what ``dump_snapshot`` wrote. Raises SnapshotError if it is damaged or outdated.

    ``exact`` also refuses a cold-start snapshot without counts of near misses: to apply its labels
    again would lead to another state.
    """
    with _decoding():
        head = msgspec.msgpack.decode(data, type=_SnapshotHead)
    if head != _SnapshotHead(format=SNAPSHOT_FORMAT, version=version, features=NAMES):
        raise SnapshotError(
            f"the snapshot was learned by {head.version!r} (format {head.format}), this is "
            f"{version!r} (format {SNAPSHOT_FORMAT}): what was learned does not carry over; "
            "make the file again with headstart tune"
        )
    with _decoding():
        envelope = msgspec.msgpack.decode(data, type=_Snapshot)
        state = DomainState(
            model=Posterior(*_unpacked(envelope.model)),
            memory=LabelTable(*_unpacked(envelope.memory)),
            pending=_memory_rows(LabelTable(*_unpacked(envelope.pending))),
            curve=ErrorCurve(*_unpacked(envelope.curve)),
            alarm=envelope.alarm,
            alarmed=envelope.alarmed,
            learned_pairs=envelope.learned_pairs,
            since_update=envelope.since_update,
            counts=envelope.counts,
            sketches=envelope.sketches,
            near_misses=envelope.near_misses or NearMissCounts(),
            same_words=envelope.same_words,
        )
    if exact and envelope.near_misses is None and state.learned_pairs < ENOUGH_LABELS:
        raise SnapshotError("the snapshot is older than the count of near misses")
    return state, EntryStatsTable(envelope.entries)


def _packed(value: Posterior | LabelTable | ErrorCurve) -> tuple[_Array, ...]:
    arrays = msgspec.structs.astuple(value)
    return tuple(_Array(array.dtype.str, array.shape, array.tobytes()) for array in arrays)


def _unpacked(arrays: tuple[_Array, ...]) -> Iterator[NDArray[Any]]:
    for array in arrays:
        yield np.frombuffer(array.data, array.type).reshape(array.shape)


def _memory_rows(memory: LabelTable) -> tuple[LabelledRow, ...]:
    return tuple(
        LabelledRow(features.astype(np.float64), *values)
        for features, *values in zip(
            memory.features,
            memory.same.tolist(),
            memory.offset.tolist(),
            memory.mass.tolist(),
            memory.similarity.tolist(),
            memory.principal.tolist(),
            strict=True,
        )
    )


# --- the domain -----------------------------------------------------------------------------------


class LabelEffect(Frozen):
    """The effect of one label."""

    used: bool = True
    """False if the label is of another version or says nothing new."""
    alarm: bool = False
    """The label raised the alarm."""
    redrawn: bool = False
    """The threshold was computed again."""
    rule: Rule = Rule.COLD_START
    """The rule in force after the label."""
    trust: Trust = Trust.STRICT
    """How far the cold-start threshold is trusted after the label."""


class DomainStatus(Frozen, omit_defaults=False):
    """The state of a domain, for status pages, reports and explanations."""

    version: str
    labels: int
    unsure: int
    candidates: int
    """Labelled candidates in memory."""
    rule: Rule
    threshold: float | None
    """The threshold of the score or, at cold start, of the similarity. None: nothing is served."""
    trust: Trust
    """How far the cold-start threshold is trusted."""
    near_misses: int
    """Compared misses with a neighbour that was nearly similar enough for the cold start."""
    near_misses_different: int
    """The near misses whose answers differed. Their share determines ``trust``."""
    same_words: bool
    """Whether prompts with the same words are served, whatever their score."""
    alarm: bool
    alarms: int
    audits: int
    audits_wrong: int
    nulls: int
    false_disagree: float
    """The judge's rate of false disagreement, as null audits measured it."""
    serves: float
    """The share of the remembered candidates that the rule in force serves."""
    cold_start_serves: float
    """The share that the cold-start rule would serve. If it is larger than ``serves``, the
    cold-start rule is too lax for this domain."""
    error: float | None
    """The estimated share of wrong answers among the served ones."""
    bound: float | None
    """The upper confidence bound of ``error``, with the confidence of the error target."""


class ServedShares(NamedTuple):
    """The last fields of a ``DomainStatus``."""

    serves: float = 0.0
    cold_start_serves: float = 0.0
    error: float | None = None
    bound: float | None = None


class Domain:
    """The learned state of one domain. Not thread-safe. The same labels lead to the same state.

    ``prior`` is the snapshot of another domain to start from, without its statistics of entries.
    Raises SnapshotError if its version differs.
    """

    def __init__(
        self, error_limit: ErrorLimit, prior: bytes | None = None, *, version: str = VERSION
    ) -> None:
        self.error_limit = error_limit
        self.version = version
        self._entries = EntryStatsTable()
        self._state = initial_state()
        self._hopeful = False
        """At the last update no threshold met the error target, and errors of the judge may be the
        reason (``_judge_may_explain``)."""
        self.asked_twice = 0
        """The misses that this process has asked twice. Not all of them lead to a label."""
        # Results that are kept, each with the values from which it was computed.
        self._rule: tuple[DomainState, Rule] | None = None
        self._least: tuple[ErrorCurve, float | None] | None = None
        self._gate: tuple[DomainState, GateCounts, Gate] | None = None
        if prior is not None:
            self._state, _ = load_snapshot(prior, version)
            self._state = redraw_curve(self._state, error_limit)

    @classmethod
    def restore(cls, error_limit: ErrorLimit, data: bytes, *, version: str = VERSION) -> Domain:
        """Return the domain that made a ``snapshot``.

        Raises SnapshotError if its labels, applied again, would lead to another state.
        """
        domain = cls(error_limit, version=version)
        domain._state, domain._entries = load_snapshot(data, version, exact=True)
        return domain

    def snapshot(self) -> bytes:
        """Serialise everything, so that ``restore`` makes an equal domain."""
        return dump_snapshot(self._state, self._entries, self.version)

    @property
    def rule(self) -> Rule:
        """The rule in force. After an alarm it is never again the cold-start rule."""
        state = self._state
        if self._rule is None or self._rule[0] is not state:
            learned = state.counts.alarms > 0 or state.learned_pairs >= ENOUGH_LABELS
            if not learned and state.learned_pairs >= MIN_LABELS:
                learned = self._learned_threshold(self.error_limit.max_error) is not None
            self._rule = state, Rule.LEARNED if learned else Rule.COLD_START
        return self._rule[1]

    @property
    def labels(self) -> int:
        """The number of labels so far, including unsure ones."""
        return self._state.counts.labels

    @property
    def trust(self) -> Trust:
        """How far the cold-start threshold is trusted, given the near misses so far."""
        limit = self.error_limit
        optimistic = limit.cold_start == "optimistic"
        return self._state.near_misses.trust(limit.max_error, self._seen, optimistic=optimistic)

    def _seen(self, rate: float) -> float:
        """Return the share of labels that say "different" if this share of pairs is."""
        return _judged_different(min(rate, 1.0), self._state, self.error_limit)

    def serves_same_words(self, max_error: float | None = None) -> bool:
        """Tell whether a pair with the same words is served, whatever its score.

        While few such pairs were compared, only the cold start serves them, unless too many near
        misses had other answers. After that it depends on the answers of such pairs alone.
        """
        if self._state.alarmed or not cold_start_threshold(self.target(max_error)):
            return False
        trust = self._state.same_words.trust(self.error_limit.max_error, self._seen)
        if trust is Trust.STRICT:
            return self.rule is Rule.COLD_START and self.trust is not Trust.NONE
        return trust is not Trust.NONE

    def lifts_soft_guards(self, max_error: float | None = None) -> bool:
        """Tell whether labels show that pairs that only soft guards veto meet the target."""
        judged = self._seen(self.target(max_error))
        return self._state.near_misses.lifts_soft_guards(judged)

    @property
    def refusal(self) -> str:
        """The veto of a ``Verdict`` while there is no threshold."""
        unlearned = "unlearned" if self.rule is Rule.COLD_START else "unqualified"
        return "alarm" if self._state.alarmed else unlearned

    def threshold(self, max_error: float | None = None) -> float | None:
        """Return the least score (at cold start: similarity) of a hit; None: serve nothing.

        ``max_error`` is a stricter target than the domain has. A laxer one has no effect.
        """
        if self._state.alarmed:
            return None
        target = self.target(max_error)
        if self.rule is Rule.COLD_START:
            return cold_start_threshold(target, self.trust)
        return self._learned_threshold(target)

    def target(self, max_error: float | None) -> float:
        """Return the error target of a request: its own, unless that is laxer or None."""
        own = self.error_limit.max_error
        return own if max_error is None else min(max_error, own)

    def gate(self, counts: GateCounts) -> Gate:
        """Return which questions are worth encoding. ``counts`` has the counts of this process."""
        state, known = self._state, self._gate
        if known is None or known[0] is not state or known[1] is not counts:
            learned, serves = self.rule is Rule.LEARNED, self.threshold() is not None
            # It differs before, during and after each alarm, and changes when a rule is learned.
            rule = 4 * state.counts.alarms + 2 * state.alarmed + learned
            gate = gate_of(
                state.sketches,
                counts,
                noise_of(state, self.error_limit),
                learned=learned,
                least_served=self.least_served if learned else None,
                rule=rule if serves or state.alarmed else NOTHING_SERVED,
                refusal=None if serves else self.refusal,
                same_words=not serves and self.serves_same_words(),
            )
            known = self._gate = state, counts, gate
        return known[2]

    @property
    def noise(self) -> JudgeNoise:
        """The error rates of the judge, as far as they are known."""
        return noise_of(self._state, self.error_limit)

    @property
    def least_served(self) -> float | None:
        """The similarity that 99 % of the hits reach under the present rule.

        None while there is no learned rule, or if it serves nothing.
        """
        threshold = self.threshold()
        if self.rule is Rule.COLD_START or threshold is None:
            return None
        curve = self._state.curve
        if self._least is None or self._least[0] is not curve:
            scores, _ = memory_scores(self._state.model, self._state.memory, self.noise)
            served = self._state.memory.similarity[scores >= threshold]
            least = float(np.quantile(served, RARELY_SERVED)) if len(served) else None
            self._least = curve, least
        return self._least[1]

    def _learned_threshold(self, target: float, curve: ErrorCurve | None = None) -> float | None:
        curve = self._state.curve if curve is None else curve
        if self.error_limit.error_of == "requests":
            return curve.threshold_of_requests(target, self.error_limit.margin)
        return curve.threshold(target, self.error_limit.margin)

    def audit_rate(self, least: float = MIN_AUDIT_RATE) -> float:
        """Return the share of hits to audit now. Each audit lowers it, down to ``least``."""
        made = self._state.counts.audits
        return max(least, MAX_AUDIT_RATE / sqrt(1 + made / AUDITS_HALF_LIFE))

    def null_rate(self) -> float:
        """Return the share of exact hits to ask again now, in addition to the usual share."""
        return EARLY_NULL_RATE if self._state.counts.nulls < NULLS_WANTED else 0.0

    def repeat_rate(self, verdict: Verdict, entry: str) -> float:
        """Return the share of misses like this one to ask twice. The two answers are a null audit.

        Only a miss whose neighbour has nearly the similarity and the score of a hit is asked twice.
        The first ``FIRST_REPEATS`` null audits are always wanted. Further ones are wanted only
        while nothing may be served and errors of the judge may be the reason.
        """
        counts, limit = self._state.counts, self.error_limit
        if limit.max_error < REPEATS_TARGET or counts.labels < REPEATS_FROM:
            return 0.0
        # If the judge is never sure, or labels cannot be written, more null audits do not help.
        asked = max(counts.nulls + counts.nulls_unsure, self.asked_twice)
        is_first = counts.nulls < FIRST_REPEATS
        if asked >= MOST_REPEATS or self._state.alarmed or not (is_first or self._hopeful):
            return 0.0
        if not verdict.features or not is_near_miss(verdict.similarity, limit.max_error):
            return 0.0
        if self.score(unpack_features(verdict.features), entry) < REPEAT_SCORE:
            return 0.0
        return FIRST_REPEAT_RATE if is_first else REPEAT_RATE

    def _judge_may_explain(self) -> bool:
        """Tell whether errors of the judge may be the reason that no threshold meets the target.

        Then there would be a threshold if the judge was as bad as the null audits still allow.
        """
        state, limit, counts = self._state, self.error_limit, self._state.counts
        if not FIRST_REPEATS <= counts.nulls < MOST_REPEATS or not len(state.memory):
            return False
        if self._learned_threshold(limit.max_error) is not None:
            return False
        worst = limit.judge.highest(counts.nulls, counts.nulls_different)
        curve = curve_of(state.model, state.memory, worst)
        return self._learned_threshold(limit.max_error, curve) is not None

    def entry_stats(self, entry: str) -> EntryStats:
        """Return the answer group and the offset of an entry."""
        return self._entries.of(entry)

    def score(self, features: NDArray[np.float64], entry: str) -> float:
        """Return the cautious log-odds that an entry's answer is right: less the uncertainty."""
        return cautious_score(self._state.model, features, self._entries.of(entry).offset)

    def contributions(self, features: bytes) -> dict[str, float]:
        """Return the part of each feature in the score, the largest first.

        ``uncertainty`` is the part that is subtracted out of caution. The entry's own offset is
        left out.
        """
        row = unpack_features(features)
        shares = row * self._state.model.mean
        named = dict(zip(NAMES, shares.tolist(), strict=True))
        named["uncertainty"] = cautious_score(self._state.model, row, 0.0) - float(shares.sum())
        return dict(sorted(named.items(), key=lambda item: -abs(item[1])))

    def apply(self, label: Label) -> LabelEffect:
        """Learn one label. Labels must be applied in the order of the store."""
        before = self._state
        used = self._apply(label)
        state = self._state
        if state.curve is not before.curve:
            self._hopeful = self._judge_may_explain()
        return LabelEffect(
            used=used,
            alarm=state.counts.alarms > before.counts.alarms,
            redrawn=state.curve is not before.curve,
            rule=self.rule,
            trust=self.trust,
        )

    def _apply(self, label: Label) -> bool:
        if label.source is LabelSource.NULL:
            if label.same is None:
                self._state = add_counts(self._state, nulls_unsure=1)
                return False
            # Both answers are to one question, so "different" is an error of the judge.
            self._state = add_counts(self._state, nulls=1, nulls_different=int(not label.same))
            return True
        if label.version != self.version:
            return False
        self._state = add_counts(self._state, labels=1, unsure=int(label.same is None))
        if label.same is None:
            return False
        if label.source is LabelSource.AUDIT:
            self._state = count_audit(self._state, self.error_limit, same=label.same)
        row = LabelledRow(
            features=unpack_features(label.features),
            same=label.same,
            offset=self._entries.of(label.entry).offset,
            mass=1 / max(label.draw_probability, LEAST_DRAW_PROBABILITY),
            similarity=label.similarity,
            principal=_hashed(label.principal),
        )
        state = count_sketch(count_near_miss(self._state, label, self.error_limit), label)
        self._state, residual, weight = learn(
            state, row, self.error_limit, vetoed=_is_hard_guard(label.veto)
        )
        if weight:
            self._entries.learn(label.entry, residual, weight)
        if label.source is LabelSource.MISS and label.stored and label.same:
            self._entries.join(label.id, label.entry)
        return True

    def status(self) -> DomainStatus:
        """Return the status of the domain. It takes about as long as a threshold update."""
        state, counts, threshold = self._state, self._state.counts, self.threshold()
        return DomainStatus(
            version=self.version,
            labels=counts.labels,
            unsure=counts.unsure,
            candidates=state.remembered,
            rule=self.rule,
            threshold=threshold,
            trust=self.trust,
            near_misses=state.near_misses.compared,
            near_misses_different=state.near_misses.different,
            same_words=self.serves_same_words(),
            alarm=state.alarmed,
            alarms=counts.alarms,
            audits=counts.audits,
            audits_wrong=counts.audits_wrong,
            nulls=counts.nulls,
            false_disagree=self.noise.false_disagree,
            **self._shares(threshold)._asdict(),
        )

    def _shares(self, threshold: float | None) -> ServedShares:
        """Return what the rule in force would do with the remembered candidates."""
        memory, curve = self._state.memory, self._state.curve
        total = float(memory.mass.sum())
        if not total:
            return ServedShares()
        target, trust = self.error_limit.max_error, self.trust
        scores, _ = memory_scores(self._state.model, memory, self.noise)
        is_similar = memory.similarity >= (cold_start_threshold(target, trust) or np.inf)
        is_likely = scores >= least_score(target, trust)
        cold_start_serves = float(memory.mass[is_similar & is_likely].sum()) / total
        if self.rule is Rule.COLD_START:
            return ServedShares(cold_start_serves, cold_start_serves)
        if threshold is None:
            return ServedShares(0.0, cold_start_serves)
        serves = float(memory.mass[scores >= threshold].sum()) / total
        # The last cut of the curve that the threshold allows has the error of all hits.
        cut = int(np.flatnonzero(curve.cuts >= threshold)[-1])
        error = float(curve.errors[cut])
        bound = error + self.error_limit.margin * float(curve.deviations[cut])
        return ServedShares(serves, cold_start_serves, error, bound)


def _hashed(principal: str) -> int:
    if not principal:
        return 0
    return int.from_bytes(blake2b(principal.encode(), digest_size=8).digest(), "big", signed=True)
