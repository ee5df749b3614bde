"""What a log says about thresholds: hits against error, who is told apart, what is borderline."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.decisions import Rule
from headstart.lab.rates import Ordering, ordering_report
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.lab.stream import Step

TARGETS = (0.005, 0.01, 0.02, 0.05, 0.10)
"""Error targets that are compared."""
THRESHOLDS = tuple(round(0.80 + step / 100, 2) for step in range(20))
"""Similarities among which a static threshold is chosen."""
BORDERLINE = 20
"""Pairs that are listed: half of them served, half refused."""
ROC_POINTS = 200
WINDOWS = 40
"""Parts of a stream over which rates are drawn."""


class Target(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """A stream played from cold with one error target."""

    max_error: float
    rates: Ordering
    late: Ordering
    """Of the second half, when much has been learned."""


class Roc(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """How well a number tells pairs with the same answer from others, whatever the threshold."""

    name: str
    area: float
    """Under the curve: 0.5 is chance, 1 perfect."""
    points: tuple[tuple[float, float], ...]
    """(share of different pairs above a threshold, share of same pairs above it)."""


class Moment(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """Where the threshold and the rates stood in one part of a stream."""

    n: int
    """Prompts asked by its end."""
    rule: str
    threshold: float | None
    """Of the score under the learned rule, else of the similarity; None: nothing qualified."""
    hit_rate: float
    wrong_per_hit: float | None


class Borderline(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """A pair near the threshold. ``margin`` is its score less the threshold."""

    asked: str
    stored: str
    similarity: float
    margin: float
    served: bool
    same: bool | None


class Static(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """The best static threshold in hindsight: the lowest that kept the target with certainty."""

    threshold: float
    rates: Ordering


class Tuning(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """All that ``headstart tune`` found."""

    n: int
    skipped: dict[str, int]
    """Lines that the cache would not keep, by reason."""
    max_error: float
    chosen: Ordering
    """At ``max_error``."""
    targets: tuple[Target, ...]
    roc: tuple[Roc, ...]
    course: tuple[Moment, ...]
    borderline: tuple[Borderline, ...]
    templates: tuple[Any, ...] = ()
    static: Static | None = None


def target_of(max_error: float, steps: Sequence[Step[Any]]) -> Target:
    """Count one play, whole and from its middle on."""
    return Target(
        max_error=max_error,
        rates=ordering_report(steps, None),
        late=ordering_report(steps[len(steps) // 2 :], None),
    )


def rocs(steps: Iterable[Step[Any]]) -> tuple[Roc, ...]:
    """Return the curves of similarity and of the learned score, over pairs that no guard vetoed."""
    judged = [
        (step.verdict, step.right)
        for step in steps
        if step.verdict is not None and step.veto is None and step.right is not None
    ]
    same = np.array([right for _, right in judged], bool)
    if not same.any() or same.all():
        return ()
    similarity = [verdict.similarity for verdict, _ in judged]
    found = [_roc("similarity", np.array(similarity), same)]
    scores = [verdict.score for verdict, _ in judged if verdict.score is not None]
    if len(scores) == len(judged):
        found.append(_roc("learned score", np.array(scores), same))
    return tuple(found)


def _roc(name: str, values: np.ndarray, same: np.ndarray) -> Roc:
    best_first = np.argsort(-values, kind="stable")
    ordered = same[best_first]
    right = np.concatenate(([0.0], np.cumsum(ordered) / ordered.sum()))
    wrong = np.concatenate(([0.0], np.cumsum(~ordered) / (~ordered).sum()))
    shown = np.unique(np.linspace(0, len(wrong) - 1, ROC_POINTS).astype(int))
    return Roc(
        name=name,
        area=float(np.trapezoid(right, wrong)),
        points=tuple(zip(wrong[shown].tolist(), right[shown].tolist(), strict=True)),
    )


def course(steps: Sequence[Step[Any]]) -> tuple[Moment, ...]:
    """Return how threshold and rates went over the stream, in at most ``WINDOWS`` parts."""
    size = max(1, -(-len(steps) // WINDOWS))
    moments = []
    rule, threshold = Rule.COLD_START, None
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        for step in part:
            if step.verdict is not None:
                rule, threshold = step.verdict.rule, step.verdict.threshold
        rates = ordering_report(part, None)
        moments.append(
            Moment(
                n=start + len(part),
                rule=rule.value,
                threshold=threshold,
                hit_rate=rates.hit_rate or 0.0,
                wrong_per_hit=rates.wrong_per_hit,
            )
        )
    return tuple(moments)


def borderline(steps: Iterable[Step[Any]]) -> tuple[Borderline, ...]:
    """Return the pairs nearest to the threshold in force, served and refused, nearest first.

    Those of the cold-start rule only if nothing was learned: its threshold is of another number.
    """
    by_rule: dict[Rule, list[Borderline]] = defaultdict(list)
    for step in steps:
        pair = _borderline(step)
        if pair is not None and step.verdict is not None:
            by_rule[step.verdict.rule].append(pair)
    found = by_rule[Rule.LEARNED] or by_rule[Rule.COLD_START]
    nearest = sorted(found, key=lambda pair: abs(pair.margin))
    served = [pair for pair in nearest if pair.served][: BORDERLINE // 2]
    refused = [pair for pair in nearest if not pair.served][: BORDERLINE // 2]
    return (*served, *refused)


def _borderline(step: Step[Any]) -> Borderline | None:
    verdict = step.verdict
    if verdict is None or verdict.threshold is None or step.veto is not None:
        return None
    reached = verdict.score if verdict.rule is Rule.LEARNED else verdict.similarity
    if reached is None or step.neighbor is None:
        return None
    return Borderline(
        asked=step.row.prompt.query,
        stored=step.neighbor.prompt.query,
        similarity=verdict.similarity,
        margin=reached - verdict.threshold,
        served=step.served,
        same=step.right,
    )


def best_static(
    max_error: float, played: Iterable[tuple[float, Sequence[Step[Any]]]]
) -> Static | None:
    """Return the static threshold with most hits whose errors were at most ``max_error``.

    The upper end of the error's 95 % interval counts, so a few lucky hits choose nothing.
    """
    best: Static | None = None
    for threshold, steps in played:
        rates = ordering_report(steps, None)
        interval = rates.intervals["wrong_per_hit"]
        if interval is None or interval.high > max_error:
            continue
        if best is None or rates.hits > best.rates.hits:
            best = Static(threshold=threshold, rates=rates)
    return best
