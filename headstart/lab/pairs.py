"""Judge labelled pairs, each alone: ``a`` was stored, ``b`` is asked."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headstart.decisions import Nearby, Neighbor, Terms
from headstart.lab.conversations import history_judge
from headstart.lab.labelled import Labelled, Stream
from headstart.lab.rates import Rates, count_rates
from headstart.lab.stream import HISTORY
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headstart.interfaces import MatchPolicy
    from headstart.lab.labelled import Pair, Pairs
    from headstart.lab.stream import Prepared
    from headstart.types import CacheKey

P = TypeVar("P")


class Served(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """Hits of one category of pairs."""

    genuine: int = 0
    genuine_served: int = 0
    traps: int = 0
    traps_served: int = 0


class PairReport(Rates, frozen=True, kw_only=True, omit_defaults=False):
    """What was served of pairs. A pair without the same answer is a trap."""

    genuine: int
    genuine_served: int
    traps: int
    traps_served: int
    refused: dict[str, int]
    """Misses by what refused them: a guard, ``threshold``, ``not-comparable``, ..."""
    categories: dict[str, Served]


def judge_pairs(
    pairs: Iterable[Pair], prepare: Callable[[str], Prepared[P]], policy: MatchPolicy[P]
) -> PairReport:
    """Judge each pair alone. Equal prompts are exact hits."""
    refused: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        kind = "genuine" if pair.same_answer else "traps"
        tally = counts[pair.category or "all"]
        tally[kind] += 1
        refusal = _refuse(pair, prepare, policy)
        if refusal is None:
            tally[f"{kind}_served"] += 1
        else:
            refused[refusal] += 1
    total = sum(counts.values(), Counter[str]())
    rates = count_rates(
        n=total["genuine"] + total["traps"],
        hits=total["genuine_served"] + total["traps_served"],
        wrong=total["traps_served"],
    )
    return PairReport(
        **rates,
        genuine=total["genuine"],
        genuine_served=total["genuine_served"],
        traps=total["traps"],
        traps_served=total["traps_served"],
        refused=dict(refused.most_common()),
        categories={name: Served(**tally) for name, tally in sorted(counts.items())},
    )


def pairs_in_order(rows: Pairs | Stream) -> Sequence[Labelled]:
    """Return labelled rows as a stream. A pair's two prompts can meet each other alone."""
    if isinstance(rows, Stream):
        return rows.rows
    return [
        Labelled(prompt=_apart(prompt, number), label=label, category=pair.category)
        for number, pair in enumerate(rows.rows)
        for prompt, label in (
            (pair.a, f"{number}"),
            (pair.b, f"{number}" if pair.same_answer else f"{number} other"),
        )
    ]


def _apart(key: CacheKey, number: int) -> CacheKey:
    """Key a prompt as if each pair had a scope of its own."""
    names = ("partition", "exact", "conversation")
    bound = {
        name: f"{number} {getattr(key, name)}" for name in names if getattr(key, name) is not None
    }
    return msgspec.structs.replace(key, **bound)


def _refuse(
    pair: Pair, prepare: Callable[[str], Prepared[P]], policy: MatchPolicy[P]
) -> str | None:
    """Return None for a hit, else what refused it."""
    a, b = pair.a, pair.b
    if a.exact == b.exact:
        return None
    if a.query is None or b.query is None or a.group != b.group:
        return "not-comparable"
    stored, asked = prepare(a.query), prepare(b.query)
    if not (stored.usable and asked.usable):
        return "not-comparable"
    similarity = float(stored.vector @ asked.vector)
    if similarity < policy.minimum:
        return "threshold"
    veto = policy.veto(asked.parse, stored.parse)
    if veto is None and not history_judge(policy, prepare)(b, a):
        veto = HISTORY
    nearby = Nearby(Terms(), [Neighbor(id="stored", similarity=similarity)], 0)
    verdict = policy.judge(asked.parse, stored.parse, nearby, veto)
    return None if verdict.serve else verdict.veto or "policy"
