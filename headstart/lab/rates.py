"""What a policy served, rightly and wrongly. ``docs/tuning.md`` says what the numbers mean."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headstart.lab.statistics import Interval, least_share, wilson_interval
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.lab.stream import Step


class Rates(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """What a policy served. ``wrong_per_hit`` is null when it served nothing."""

    n: int
    hits: int
    wrong: int
    hit_rate: float | None
    wrong_per_hit: float | None
    wrong_per_request: float | None
    intervals: dict[str, Interval | None]
    """Of the three rates, by name: two-sided, 95 %."""
    wrong_per_hit_at_least: float
    """Exact one-sided 95 % lower bound: a promise below it is broken."""


class Category(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """Prompts of one category of a stream."""

    n: int = 0
    hits: int = 0
    wrong: int = 0


class Played(Rates, frozen=True, kw_only=True, omit_defaults=False):
    """What was served of a stream."""

    audits: int
    """Hits whose prompt was asked upstream all the same."""
    refused: dict[str, int]
    """Misses by what refused the nearest: a guard, ``threshold``, ``unqualified``, ..."""
    categories: dict[str, Category]


class Ordering(Played, frozen=True, kw_only=True, omit_defaults=False):
    """A stream, played once. ``seed`` is None for the file's own order."""

    seed: int | None


class StreamReport(Played, frozen=True, kw_only=True, omit_defaults=False):
    """A stream, played in one or more orderings. Counts are sums over the orderings.

    Orderings share their prompts, so the intervals are as wide as those of one.
    """

    orderings: tuple[Ordering, ...]


def ordering_report(steps: Iterable[Step[Any]], seed: int | None) -> Ordering:
    """Count one play. A hit of unknown truth is neither right nor wrong, so it is no hit here."""
    refused: Counter[str] = Counter()
    categories: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for step in steps:
        count = Counter(n=1)
        if not step.served:
            refused[step.refusal] += 1
        elif step.right is None:
            refused["unjudged"] += 1
        else:
            count += Counter(hits=1, wrong=int(not step.right))
        total += count + Counter(audits=int(step.audited))
        category = getattr(step.row, "category", None)
        if category is not None:
            categories[category] = categories.get(category, Counter()) + count
    return Ordering(
        **count_rates(total["n"], total["hits"], total["wrong"]),
        seed=seed,
        audits=total["audits"],
        refused=dict(refused.most_common()),
        categories={name: Category(**count) for name, count in sorted(categories.items())},
    )


def stream_report(orderings: Sequence[Ordering]) -> StreamReport:
    """Add up orderings of one stream."""
    refused: Counter[str] = Counter()
    categories: dict[str, Counter[str]] = {}
    for each in orderings:
        refused.update(each.refused)
        for name, category in each.categories.items():
            count = Counter(n=category.n, hits=category.hits, wrong=category.wrong)
            categories[name] = categories.get(name, Counter()) + count
    n, hits, wrong = (
        sum(getattr(each, name) for each in orderings) for name in ("n", "hits", "wrong")
    )
    return StreamReport(
        **count_rates(n, hits, wrong, plays=len(orderings)),
        audits=sum(each.audits for each in orderings),
        refused=dict(refused.most_common()),
        categories={name: Category(**count) for name, count in sorted(categories.items())},
        orderings=tuple(orderings),
    )


def count_rates(n: int, hits: int, wrong: int, plays: int = 1) -> dict[str, Any]:
    """Return the fields of ``Rates`` for counts that ``plays`` of the same prompts gave."""
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
        "intervals": {
            name: wilson_interval(count / plays, of / plays) for name, (count, of) in shares.items()
        },
        "wrong_per_hit_at_least": least_share(wrong // plays, max(hits // plays, 1)),
    }
