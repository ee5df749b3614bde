"""Play labelled prompts against a match policy and count what it serves, rightly and wrongly.

Pure: the caller encodes. ``docs/how-a-hit-is-decided.md`` says what the numbers mean.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import sqrt
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from headstart.decisions import Nearby, Neighbor, Terms
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from headstart.decisions import Verdict
    from headstart.interfaces import MatchPolicy
    from headstart.policies.labelled import Labelled, Pair

P = TypeVar("P")

NEIGHBORS = 8
"""How many neighbours are judged, best first: as many as the cache fetches."""
_Z = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


class Prepared(NamedTuple, Generic[P]):
    """A prompt's text, encoded and parsed. ``usable`` is False beyond the encoder's limit."""

    vector: NDArray[np.float32]
    parse: P
    usable: bool


class Interval(NamedTuple):
    """A two-sided 95 % Wilson score interval (Wilson 1927)."""

    low: float
    high: float


class Served(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """Hits of one category of pairs."""

    genuine: int = 0
    genuine_served: int = 0
    traps: int = 0
    traps_served: int = 0


class Rates(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """What a policy served. ``wrong_per_hit`` is null when it served nothing."""

    n: int
    hits: int
    wrong: int
    hit_rate: float | None
    wrong_per_hit: float | None
    wrong_per_request: float | None
    intervals: dict[str, Interval | None]
    """Of the three rates, by name."""
    refused: dict[str, int]
    """Misses by what refused the best candidate: a guard, ``threshold``, or ``not-comparable``."""


class StreamReport(Rates, frozen=True, kw_only=True, omit_defaults=False):
    """Prompts played in order into an empty cache: right is what its class says."""


class PairReport(Rates, frozen=True, kw_only=True, omit_defaults=False):
    """Pairs: ``a`` was stored, ``b`` was asked. A pair without the same answer is a trap."""

    genuine: int
    genuine_served: int
    traps: int
    traps_served: int
    categories: dict[str, Served]


def judge_pairs(
    pairs: Iterable[Pair], prepare: Callable[[str], Prepared[P]], policy: MatchPolicy[P]
) -> PairReport:
    """Judge each pair alone, as a fresh deployment would."""
    refused: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        kind = "genuine" if pair.same_answer else "traps"
        tally = counts[pair.category or "all"]
        tally[kind] += 1
        refusal = _judge_pair(pair, prepare, policy)
        if refusal is None:
            tally[f"{kind}_served"] += 1
        else:
            refused[refusal] += 1
    total = sum(counts.values(), Counter[str]())
    rates = _rates(
        n=total["genuine"] + total["traps"],
        hits=total["genuine_served"] + total["traps_served"],
        wrong=total["traps_served"],
        refused=refused,
    )
    categories = {name: Served(**tally) for name, tally in sorted(counts.items())}
    return PairReport(
        **rates,
        genuine=total["genuine"],
        genuine_served=total["genuine_served"],
        traps=total["traps"],
        traps_served=total["traps_served"],
        categories=categories,
    )


def judge_stream(
    prompts: Iterable[Labelled], prepare: Callable[[str], Prepared[P]], policy: MatchPolicy[P]
) -> StreamReport:
    """Play a stream into an empty cache. A miss is stored with its own fresh answer."""
    refused: Counter[str] = Counter()
    partitions: dict[str, _Partition[P]] = defaultdict(_Partition)
    n = hits = wrong = 0
    for row in prompts:
        n += 1
        if row.prompt.text is None:
            refused["not-comparable"] += 1
            continue
        prepared = prepare(row.prompt.text)
        if not prepared.usable:
            refused["not-comparable"] += 1
            continue
        partition = partitions[row.prompt.history]
        served, refusal = partition.ask(prepared, policy)
        if served is not None:
            hits += 1
            wrong += served != row.label
            continue
        refused[refusal] += 1
        partition.add(prepared, row.label)
    return StreamReport(**_rates(n=n, hits=hits, wrong=wrong, refused=refused))


def _judge_pair(
    pair: Pair, prepare: Callable[[str], Prepared[P]], policy: MatchPolicy[P]
) -> str | None:
    """Return None for a hit, else what refused it."""
    if pair.a == pair.b:
        return None
    if pair.a.history != pair.b.history or pair.a.text is None or pair.b.text is None:
        return "not-comparable"
    stored, asked = prepare(pair.a.text), prepare(pair.b.text)
    if not (stored.usable and asked.usable):
        return "not-comparable"
    neighbor = Neighbor(id="stored", similarity=float(stored.vector @ asked.vector))
    verdict = _verdict(policy, asked.parse, stored.parse, Nearby(Terms(), [neighbor], 0))
    return None if verdict.serve else _refusal(verdict)


def _verdict(policy: MatchPolicy[P], query: P, candidate: P, nearby: Nearby) -> Verdict:
    return policy.judge(query, candidate, nearby, policy.veto(query, candidate))


class _Partition(Generic[P]):
    """The stored prompts of one history, searched exhaustively."""

    def __init__(self) -> None:
        self._vectors: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._stored: list[tuple[P, str]] = []

    def add(self, prepared: Prepared[P], label: str) -> None:
        size = len(self._stored)
        if size == len(self._vectors):
            grown = np.empty((max(64, 2 * size), len(prepared.vector)), np.float32)
            grown[:size] = self._vectors[:size] if size else 0
            self._vectors = grown
        self._vectors[size] = prepared.vector
        self._stored.append((prepared.parse, label))

    def ask(self, prepared: Prepared[P], policy: MatchPolicy[P]) -> tuple[str | None, str]:
        """Return the label of the best survivor, or None and what refused the best candidate."""
        refusal = "threshold"
        near = [
            (place, Neighbor(id=str(place), similarity=similarity))
            for place, similarity in self._nearest(prepared.vector)
        ]
        for rank, (place, _) in enumerate(near):
            parse, label = self._stored[place]
            nearby = Nearby(Terms(), [neighbor for _, neighbor in near], rank)
            verdict = _verdict(policy, prepared.parse, parse, nearby)
            if verdict.serve:
                return label, ""
            if rank == 0:
                refusal = _refusal(verdict)
        return None, refusal

    def _nearest(self, vector: NDArray[np.float32]) -> Iterator[tuple[int, float]]:
        if not self._stored:
            return
        similarities = self._vectors[: len(self._stored)] @ vector
        count = min(NEIGHBORS, len(similarities))
        best = np.argpartition(-similarities, count - 1)[:count]
        for place in best[np.argsort(-similarities[best])]:
            yield int(place), float(similarities[place])


def _refusal(verdict: Verdict) -> str:
    return verdict.veto or "policy"


def _rates(*, n: int, hits: int, wrong: int, refused: Counter[str]) -> dict[str, Any]:
    shares = {
        "hit_rate": (hits, n),
        "wrong_per_hit": (wrong, hits),
        "wrong_per_request": (wrong, n),
    }
    return {
        "n": n,
        "hits": hits,
        "wrong": wrong,
        **{name: count / of if of else None for name, (count, of) in shares.items()},
        "intervals": {name: wilson_interval(count, of) for name, (count, of) in shares.items()},
        "refused": dict(refused.most_common()),
    }


def wilson_interval(count: int, of: int) -> Interval | None:
    """Return the 95 % interval of the share ``count / of``; None when ``of`` is 0."""
    if not of:
        return None
    share, z2 = count / of, _Z * _Z
    middle = share + z2 / (2 * of)
    spread = _Z * sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    scale = 1 + z2 / of
    return Interval(max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))
