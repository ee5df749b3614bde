"""Play a stream of prompts into an empty cache, learning from it as production does.

A miss is stored with its own fresh answer, and what that says of the judged neighbour is a label;
hits are audited at the rate that the learning domain asks for. Exact repeats are the exact tier's:
some are asked again all the same, which tells how often the judge calls equal answers different.
Labels are applied in order.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from headstart.decisions import Label, LabelSource, Nearby, Neighbor, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from headstart.decisions import Verdict
    from headstart.interfaces import MatchPolicy
    from headstart.lab.judges import Judge
    from headstart.types import CacheKey

P = TypeVar("P")
NEIGHBORS = 8
"""How many neighbours are judged, best first: as many as the cache fetches."""


HISTORY = "history"
"""The refusal of a neighbour from another conversation."""


class Prepared(NamedTuple, Generic[P]):
    """A prompt's text, encoded and parsed. ``usable`` is False beyond the encoder's limit."""

    vector: NDArray[np.float32]
    parse: P
    usable: bool


class Asked(Protocol):
    """A row of a stream, as far as the cache sees it."""

    @property
    def prompt(self) -> CacheKey: ...


class Learner(Protocol):
    """What learns from labels, such as a ``Domain``."""

    def apply(self, label: Label) -> object:
        """Learn one label."""

    def audit_rate(self) -> float:
        """Return the share of hits to audit now."""


R = TypeVar("R", bound=Asked)


class Game(NamedTuple, Generic[P, R]):
    """Who plays: a policy, what learns for it, and who judges.

    ``truth`` scores; ``judge`` is what learning is told. ``draw`` gives uniform numbers in [0, 1),
    by which audits are drawn. In a ``shadow`` game nothing is served: every prompt is stored, and
    every judged neighbour labelled.
    """

    policy: MatchPolicy[P]
    learner: Learner | None
    truth: Judge[R]
    judge: Judge[R]
    draw: Callable[[], float]
    same_history: Callable[[CacheKey, CacheKey], bool]
    """Tells whether two conversations of one group came to the same."""
    null_rate: float = 0.005
    """Share of exact repeats that are asked again."""
    shadow: bool = False


class Step(NamedTuple, Generic[R]):
    """What happened to one prompt."""

    row: R
    served: bool
    refusal: str = ""
    """Why it was a miss: the nearest's guard, or the policy's word. Empty for a hit."""
    neighbor: R | None = None
    """The row whose answer was judged, and served if this was a hit."""
    place: int = -1
    """Where in the stream the neighbour was asked."""
    verdict: Verdict | None = None
    """On the neighbour."""
    right: bool | None = None
    """Is the neighbour's answer the prompt's own? None where that is not known."""
    veto: str | None = None
    """The guard that vetoed the neighbour: it was judged for learning alone."""
    audited: bool = False


def play(
    rows: Iterable[R], prepare: Callable[[str], Prepared[P]], game: Game[P, R]
) -> Iterator[Step[R]]:
    """Yield what happens to each prompt, but for exact repeats."""
    groups: dict[str, _Group[P, R]] = defaultdict(_Group)
    first: dict[str, R] = {}
    for number, row in enumerate(rows):
        key = row.prompt
        if first.setdefault(key.exact, row) is not row:
            _learn_null(number, row, first[key.exact], game)
            continue
        prepared = None if key.query is None else prepare(key.query)
        if prepared is None or not prepared.usable:
            yield Step(row, served=False, refusal="not-comparable")
            continue
        stored = groups[key.group]
        step = stored.ask(row, prepared, game)
        if game.shadow or not step.served:
            stored.add(number, row, prepared)
        yield _learn(number, step, game)


def _learn(number: int, step: Step[R], game: Game[P, R]) -> Step[R]:
    """Label a miss, or a hit that is drawn for an audit."""
    learner, verdict, neighbor = game.learner, step.verdict, step.neighbor
    if learner is None or verdict is None or neighbor is None:
        return step
    served = step.served and not game.shadow
    rate = learner.audit_rate() if served else 1.0
    if served and game.draw() >= rate:
        return step
    label = Label(
        id=str(number),
        entry=str(step.place),
        domain="",
        source=LabelSource.AUDIT if served else LabelSource.MISS,
        same=game.judge(step.row, neighbor),
        at=float(number),
        similarity=verdict.similarity,
        version=game.policy.version,
        features=verdict.features,
        veto=verdict.veto,
        served=served,
        stored=not served,
        drawn=rate,
    )
    learner.apply(label)
    return step._replace(audited=served)


def _learn_null(number: int, again: R, first: R, game: Game[P, R]) -> None:
    if game.learner is None or game.draw() >= game.null_rate:
        return
    game.learner.apply(
        Label(
            id=str(number),
            entry="",
            domain="",
            source=LabelSource.NULL,
            same=game.judge(again, first),
            at=float(number),
            similarity=1.0,
            version=game.policy.version,
            served=True,
        )
    )


class _Group(Generic[P, R]):
    """The stored prompts that one may be compared with, searched exhaustively."""

    def __init__(self) -> None:
        self._vectors: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._stored: list[tuple[int, R, P]] = []

    def add(self, number: int, row: R, prepared: Prepared[P]) -> None:
        size = len(self._stored)
        if size == len(self._vectors):
            grown = np.empty((max(64, 2 * size), len(prepared.vector)), np.float32)
            grown[:size] = self._vectors[:size] if size else 0
            self._vectors = grown
        self._vectors[size] = prepared.vector
        self._stored.append((number, row, prepared.parse))

    def ask(self, row: R, prepared: Prepared[P], game: Game[P, R]) -> Step[R]:
        """Walk down the neighbours to the first that no guard vetoes, as the cache does.

        If none survives, the nearest is judged with its veto: it teaches all the same, unless it
        is of another conversation, of which the texts say nothing.
        """
        policy = game.policy
        near = self._nearest(prepared.vector)
        similar = [found for found in near if found[1] >= policy.minimum]
        if not similar:
            return Step(row, served=False, refusal="threshold" if near else "nothing-stored")
        vetoes = self._walk(row, prepared, [place for place, _ in similar], game)
        rank = len(vetoes) - 1 if vetoes[-1] is None else 0
        if vetoes[rank] == HISTORY:
            return Step(row, served=False, refusal=HISTORY)
        number, neighbor, parse = self._stored[near[rank][0]]
        nearby = Nearby(Terms(), [self._neighbor(*found) for found in near], rank)
        verdict = policy.judge(prepared.parse, parse, nearby, vetoes[rank])
        return Step(
            row,
            served=verdict.serve,
            refusal="" if verdict.serve else vetoes[0] or verdict.veto or "policy",
            neighbor=neighbor,
            place=number,
            verdict=verdict,
            right=game.truth(row, neighbor),
            veto=vetoes[rank],
        )

    def _walk(
        self, row: R, prepared: Prepared[P], places: Sequence[int], game: Game[P, R]
    ) -> list[str | None]:
        """Return what keeps each neighbour apart, up to the first that nothing does."""
        vetoes: list[str | None] = []
        for place in places:
            _, neighbor, parse = self._stored[place]
            veto = game.policy.veto(prepared.parse, parse)
            if veto is None and not game.same_history(row.prompt, neighbor.prompt):
                veto = HISTORY
            vetoes.append(veto)
            if veto is None:
                break
        return vetoes

    def _nearest(self, vector: NDArray[np.float32]) -> list[tuple[int, float]]:
        if not self._stored:
            return []
        similarities = self._vectors[: len(self._stored)] @ vector
        count = min(NEIGHBORS, len(similarities))
        best = np.argpartition(-similarities, count - 1)[:count]
        ordered = best[np.argsort(-similarities[best])].tolist()
        return [(place, float(similarities[place])) for place in ordered]

    def _neighbor(self, place: int, similarity: float) -> Neighbor:
        return Neighbor(id=str(self._stored[place][0]), similarity=similarity)
