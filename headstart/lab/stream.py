"""Plays a stream of prompts into an empty cache, with the same learning as in production.

``play`` asks the cache for each prompt, in order:

- A miss is stored with its own fresh answer. If a neighbour was judged, both answers are compared.
  The result is a label, from which the learning domain learns.
- A hit is audited at the rate that the domain asks for: this gives a label, too.
- An exact repeat belongs to another part of the cache, and has no result. Some repeats are sent
  upstream again (null audits), which shows how often the judge calls equal answers different.

For example, the results of "What is the capital of France?", "France's capital?" and "What is the
capital of Spain?" may be: a miss because nothing is stored; a hit; and a miss with a label which
says that the answers differ.

``policy_maker`` and ``judge_noise`` make the match policy and the judge from names that the
commands accept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from headstart.decisions import Label, LabelSource, MatchContext, Neighbor, UnmatchedTurn, Verdict
from headstart.embeddings.entry_encoder import LEAST_SIMILARITY, MOST_ENCODINGS
from headstart.embeddings.index import FaissIndex, pack_row, pack_vector
from headstart.embeddings.semantic_search import NEIGHBORS, ComparedNeighbors, most_similar
from headstart.errors import ConfigError
from headstart.policies.agreement.judge import FREE_TEXT
from headstart.policies.guards.table import GUARDS
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import EXACT_JUDGE, ErrorLimit, JudgeNoise
from headstart.policies.match import StaticMatch, VerifiedMatch, version_of
from headstart.policies.route_rules import parse_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from headstart.embeddings.semantic_search import SimilarNeighbor
    from headstart.interfaces import MatchPolicy
    from headstart.policies.guards.words import Parse
    from headstart.settings import ColdStart
    from headstart.types import CacheKey


P = TypeVar("P")
AnyRow = TypeVar("AnyRow")
Judge: TypeAlias = "Callable[[AnyRow, AnyRow], bool | None]"
"""Returns whether a fresh and a cached row have the same answer; None when it is not sure."""


# --- the play -------------------------------------------------------------------------------------

HISTORY = "history"
"""The reason of a miss whose neighbour belongs to another conversation."""


class PreparedPrompt(NamedTuple, Generic[P]):
    """A prompt's text, encoded and parsed. ``usable``: the encoding stands for the whole text."""

    vector: NDArray[np.float32]
    parse: P
    usable: bool
    sketch: NDArray[np.float32] | None = None
    """None: the encoder has no table of sketches, so neighbours are found by their vectors."""

    @property
    def indexed(self) -> bytes:
        """The row of the index by which neighbours are found."""
        return pack_vector(self.vector) if self.sketch is None else pack_row(self.sketch)


class PreparePrompt(Protocol[P]):
    """Encodes and parses a prompt; ``task`` is the ``CacheKey.task`` of its key."""

    def __call__(self, text: str, task: str = "") -> PreparedPrompt[P]: ...


class AskedPrompt(Protocol):
    """A row of a stream, with the cache key of its prompt."""

    @property
    def prompt(self) -> CacheKey: ...


class StreamLearner(Protocol):
    """A learner from labels, such as a ``Domain``."""

    def apply(self, label: Label) -> object:
        """Learn one label."""

    def audit_rate(self) -> float:
        """Return the present share of hits to audit."""

    def repeat_rate(self, verdict: Verdict, entry: str) -> float:
        """Return the present share of misses to ask twice."""


R = TypeVar("R", bound=AskedPrompt)


class ReplayRun(NamedTuple, Generic[P, R]):
    """One replay: a policy, its learner and two judges.

    ``truth`` gives the score; ``judge`` labels the answers for the learner. ``draw`` gives uniform
    numbers in [0, 1) that select audits. With ``shadow`` no answer is served: every prompt is
    stored, and every judged neighbour is labelled, also where a domain would compare fewer.
    """

    policy: MatchPolicy[P]
    learner: StreamLearner | None
    truth: Judge[R]
    judge: Judge[R]
    draw: Callable[[], float]
    null_rate: float = 0.005
    """The share of exact repeats that are sent upstream again."""
    repeats: bool = False
    """``judge`` can tell how a second answer to the same row would be judged, so that misses may be
    asked twice."""
    shadow: bool = False


class PlayedPrompt(NamedTuple, Generic[R]):
    """The result of one prompt."""

    row: R
    served: bool
    refusal: str = ""
    """The reason of a miss: the nearest neighbour's guard, or the policy's. Empty for a hit."""
    neighbor: R | None = None
    """The row whose answer was judged, and was served if this was a hit."""
    place: int = -1
    """The neighbour's place in the stream."""
    verdict: Verdict | None = None
    """The policy's verdict on the neighbour."""
    right: bool | None = None
    """Whether the neighbour's answer is right for the prompt; None where that is unknown."""
    veto: str | None = None
    """The guard that vetoed the neighbour, which was then judged for learning alone."""
    audited: bool = False


def play(
    rows: Iterable[R], prepare: PreparePrompt[P], run: ReplayRun[P, R]
) -> Iterator[PlayedPrompt[R]]:
    """Yield the result of each prompt, except for exact repeats."""
    cache = _ReplayedCache(run, prepare)
    first: dict[str, R] = {}
    for number, row in enumerate(rows):
        key = row.prompt
        if first.setdefault(key.exact, row) is not row:
            if run.learner is not None and run.draw() < run.null_rate:
                run.learner.apply(_null_label(number, row, first[key.exact], run))
            continue
        prepared = None if key.query is None else prepare(key.query, key.task)
        if prepared is None or not prepared.usable:
            yield PlayedPrompt(row, served=False, refusal="not-comparable")
            continue
        step = cache.ask(row, prepared)
        if run.shadow or not step.served:
            cache.add(number, row, prepared)
        yield _learn(number, step, run)


def _learn(number: int, step: PlayedPrompt[R], run: ReplayRun[P, R]) -> PlayedPrompt[R]:
    """Label a miss, or a hit that is selected for an audit."""
    learner, verdict, neighbor = run.learner, step.verdict, step.neighbor
    if learner is None or verdict is None or neighbor is None:
        return step
    served = step.served and not run.shadow
    draw_probability = learner.audit_rate() if served else 1.0
    if served and run.draw() >= draw_probability:
        return step
    label = Label(
        id=str(number),
        entry=str(step.place),
        domain="",
        source=LabelSource.AUDIT if served else LabelSource.MISS,
        same=run.judge(step.row, neighbor),
        at=float(number),
        similarity=verdict.similarity,
        version=run.policy.version,
        features=verdict.features,
        veto=verdict.veto,
        sketch=verdict.sketch,
        same_words=verdict.same_words,
        served=served,
        stored=not served,
        draw_probability=draw_probability,
    )
    repeat_rate = learner.repeat_rate(verdict, label.entry) if run.repeats and not served else 0.0
    learner.apply(label)
    asks_twice = repeat_rate > 0 and run.draw() < repeat_rate
    if asks_twice:
        learner.apply(_null_label(number, step.row, step.row, run))
    return step._replace(audited=served or asks_twice)


def _null_label(number: int, again: R, first: R, run: ReplayRun[P, R]) -> Label:
    """Return the label of a null audit: a row is asked again, and both answers are compared."""
    return Label(
        id=str(number),
        entry="",
        domain="",
        source=LabelSource.NULL,
        same=run.judge(again, first),
        at=float(number),
        similarity=1.0,
        version=run.policy.version,
        served=True,
    )


class _StoredPrompt(NamedTuple, Generic[P, R]):
    row: R
    parse: P


class _ReplayedCache(Generic[P, R]):
    """The stored prompts of one replay, in the index of production. All of them are encoded.

    The id of a prompt is its place in the stream.
    """

    def __init__(self, run: ReplayRun[P, R], prepare: PreparePrompt[P]) -> None:
        self._run = run
        self._same_history = history_judge(run.policy, prepare)
        self._index: FaissIndex | None = None
        self._vectors: dict[str, bytes] = {}
        self._stored: dict[str, _StoredPrompt[P, R]] = {}

    def add(self, number: int, row: R, prepared: PreparedPrompt[P]) -> None:
        """Store a prompt."""
        id, indexed = str(number), prepared.indexed
        if self._index is None:
            self._index = FaissIndex(len(indexed) // 2)
        self._index.add(row.prompt.partitions, id, indexed)
        self._vectors[id] = pack_vector(prepared.vector)
        self._stored[id] = _StoredPrompt(row, prepared.parse)

    def ask(self, row: R, prepared: PreparedPrompt[P]) -> PlayedPrompt[R]:
        """Look a prompt up as the cache does: with sketches, only if one of them is near."""
        policy, draw = self._run.policy, self._run.draw
        near = self._near(row.prompt.group, prepared)
        if not near:
            return PlayedPrompt(row, served=False, refusal="nothing-stored")
        if prepared.sketch is None:
            return self._judge(row, prepared, near)
        nearest, gate = near[0].similarity, policy.gate(MatchContext())
        # While the domain serves nothing, only a share of the questions is compared.
        passing = 1.0 if self._run.shadow else gate.passing
        is_skipped = passing < 1 and draw() >= passing
        if is_skipped and nearest < gate.same_words_from:
            return PlayedPrompt(row, served=False, refusal=gate.refusal or "policy")
        # Below the gate only a sample is compared. Skipped questions count in its share, too.
        sampled = nearest < gate.least
        if sampled and draw() * passing >= gate.share:
            return PlayedPrompt(row, served=False, refusal="threshold")
        step = self._judge(row, prepared, near)
        compared = step.neighbor is not None or step.refusal == HISTORY
        policy.note_encoded(
            MatchContext(),
            nearest,
            gate,
            sampled=sampled,
            served=step.served,
            judged=compared and step.veto is None,
        )
        return step

    def _near(self, partition: str, prepared: PreparedPrompt[P]) -> Sequence[Neighbor]:
        return self._index.search(partition, prepared.indexed, NEIGHBORS) if self._index else ()

    def _judge(
        self, row: R, prepared: PreparedPrompt[P], near: Sequence[Neighbor]
    ) -> PlayedPrompt[R]:
        """Judge the first neighbour that no guard vetoes, as the cache does.

        Where every neighbour is vetoed, the nearest one is judged with its veto, because its label
        teaches, too. A neighbour of another conversation is never judged: the two texts do not
        decide whether the answers are the same.
        """
        run, own = self._run, row.prompt.partition
        compared = self._compare(row, prepared, near)
        similar = most_similar(compared, run.policy.minimum)
        if not similar:
            return PlayedPrompt(row, served=False, refusal="threshold")
        vetoes = self._vetoes(row, prepared, similar)
        candidates = [self._stored[each.id] for each in similar[: len(vetoes)]]
        # The nearest one is that of the same conversation, if there is one.
        same = (at for at, each in enumerate(candidates) if each.row.prompt.partition == own)
        nearest = next(same, 0)
        judged = len(vetoes) - 1 if vetoes[-1] is None else nearest
        if vetoes[judged] == HISTORY:
            return PlayedPrompt(row, served=False, refusal=HISTORY)
        candidate, stored = similar[judged], candidates[judged]
        ranked = compared[candidate.number].ranked(MatchContext(), candidate.place)
        verdict = run.policy.judge(prepared.parse, stored.parse, ranked, vetoes[judged])
        return PlayedPrompt(
            row,
            served=verdict.serves,
            refusal="" if verdict.serves else vetoes[nearest] or verdict.veto or "policy",
            neighbor=stored.row,
            place=int(candidate.id),
            verdict=verdict,
            right=run.truth(row, stored.row),
            veto=vetoes[judged],
        )

    def _compare(
        self, row: R, prepared: PreparedPrompt[P], near: Sequence[Neighbor]
    ) -> list[ComparedNeighbors]:
        """Compare the encodings. In a conversation, equal histories are a list of their own."""
        vectors = None if prepared.sketch is None else self._vectors
        vector, nearest = pack_vector(prepared.vector), near[0].similarity
        lists = [near]
        if row.prompt.conversation is not None:
            lists = [self._near(row.prompt.partition, prepared), near]
        return [ComparedNeighbors.of(each, vectors, vector, nearest) for each in lists if each]

    def _vetoes(
        self, row: R, prepared: PreparedPrompt[P], similar: Sequence[SimilarNeighbor]
    ) -> list[str | None]:
        """Return the veto of each neighbour, up to the first neighbour without one (None)."""
        vetoes: list[str | None] = []
        for each in similar:
            stored = self._stored[each.id]
            veto = self._run.policy.veto(prepared.parse, stored.parse)
            if veto is None and not self._same_history(row.prompt, stored.row.prompt):
                veto = HISTORY
            vetoes.append(veto)
            if veto is None:
                break
        return vetoes


# --- judges ---------------------------------------------------------------------------------------


def history_judge(
    policy: MatchPolicy[P], prepare: PreparePrompt[P]
) -> Callable[[CacheKey, CacheKey], bool]:
    """Return a judge of earlier turns: equal words first, then the encodings of reworded turns."""

    def same(asked: CacheKey, stored: CacheKey) -> bool:
        if asked.partition == stored.partition:
            return True
        found = policy.compare(asked.history, stored.history, None)
        if found.conflict is not None:
            return False
        encodings = sum(1 + len(turn.counterparts) for turn in found.unmatched)
        return encodings <= MOST_ENCODINGS and all(map(has_counterpart, found.unmatched))

    def has_counterpart(turn: UnmatchedTurn) -> bool:
        mine = prepare(turn.text)
        return any(means_same(mine, prepare(text)) for text in turn.counterparts)

    def means_same(mine: PreparedPrompt[P], theirs: PreparedPrompt[P]) -> bool:
        return (
            mine.usable
            and theirs.usable
            and float(mine.vector @ theirs.vector) >= LEAST_SIMILARITY
            and policy.reworded(mine.parse, theirs.parse)
        )

    return same


def judge_noise(name: str) -> JudgeNoise:
    """Return the errors of a judge: ``oracle``, ``real`` or ``noise=BETA,ALPHA``.

    BETA is the share of same answers that the judge calls different. ALPHA is the share of
    different answers that it calls the same. Raises ConfigError.
    """
    kind, _, numbers = name.partition("=")
    if name == "oracle":
        return EXACT_JUDGE
    if name == "real":
        return JudgeNoise(
            false_disagree=FREE_TEXT.beta,
            false_agree=FREE_TEXT.alpha,
            unsure_same=FREE_TEXT.unsure,
            unsure_different=FREE_TEXT.unsure_different,
        )
    try:
        beta, alpha = (float(number) for number in numbers.split(","))
    except ValueError as error:
        raise ConfigError(f"--judge {name}: {_JUDGES}") from error
    if kind != "noise" or min(alpha, beta) < 0 or alpha + beta >= 1:
        raise ConfigError(f"--judge {name}: {_JUDGES}, two shares whose sum is below 1")
    return JudgeNoise(false_disagree=beta, false_agree=alpha, unsure_same=0.0, unsure_different=0.0)


_JUDGES = "use oracle, real or noise=BETA,ALPHA, as in noise=0.087,0.22"


def noisy(truth: Judge[AnyRow], noise: JudgeNoise, draw: Callable[[], float]) -> Judge[AnyRow]:
    """Return a judge whose errors and doubts have the frequencies of ``noise``."""

    def judge(fresh: AnyRow, cached: AnyRow) -> bool | None:
        same = truth(fresh, cached)
        if same is None:
            return None
        unsure, wrong = (
            (noise.unsure_same, noise.false_disagree)
            if same
            else (noise.unsure_different, noise.false_agree)
        )
        if draw() < unsure:
            return None
        return same != (draw() < wrong)

    return judge


# --- policies by name -----------------------------------------------------------------------------

POLICIES = "verified, verified:1%, static, static:0.90, bare:0.90 (no guards) or off"
"""The names that ``policy_maker`` knows, in words."""


class TestedPolicy(NamedTuple):
    """A policy without experience, and the domain that learns for it."""

    policy: MatchPolicy[Parse]
    domain: Domain | None = None


class PolicySetup(NamedTuple):
    """The settings of a tested policy. ``state`` is a snapshot from which a domain starts.

    ``optimistic``: the domain starts as if the first near misses had been compared and had the same
    answers.
    """

    guards: bool
    noise: JudgeNoise
    max_error: float | None = None
    state: bytes | None = None
    optimistic: bool = False


def policy_maker(name: str, setup: PolicySetup) -> Callable[[], TestedPolicy]:
    """Return a function that makes new policies by their name. Raises ConfigError."""
    kind, _, value = name.partition(":")
    guards = tuple(GUARDS) if setup.guards else ()
    if kind == "off" and not value:
        return lambda: TestedPolicy(_Off())
    if kind in ("static", "bare"):
        threshold = _share_of(name, value)
        return lambda: TestedPolicy(StaticMatch(threshold, () if kind == "bare" else guards))
    if kind != "verified":
        raise ConfigError(f"--policy {name}: use {POLICIES}")
    error_limit = _error_limit(_share_of(name, value), setup)

    def verified() -> TestedPolicy:
        domain = Domain(error_limit, setup.state, version=version_of(guards))
        return TestedPolicy(VerifiedMatch(error_limit, lambda _: domain, guards), domain)

    return verified


def _share_of(policy: str, text: str) -> float | None:
    """Return the share that a policy's name gives, or None. Raises ConfigError."""
    share = parse_share(text)
    if share is None and text:
        raise ConfigError(f"--policy {policy}: {text!r} is not a share such as 0.01 or 1%")
    return share


def _error_limit(max_error: float | None, setup: PolicySetup) -> ErrorLimit:
    if max_error is None:
        max_error = setup.max_error
    if max_error is None:
        max_error = ErrorLimit().max_error
    cold_start: ColdStart = "optimistic" if setup.optimistic else "strict"
    return ErrorLimit(max_error=max_error, judge=setup.noise, cold_start=cold_start)


class _Off(StaticMatch):
    """A policy that serves no semantic hits."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.minimum = 2.0  # no pair is so similar
