"""How many answers are right, and the cheapest model that is good enough. Pure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from headstart.report.statistics import ShareInterval, student_t, wilson_interval
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headstart.lab.bench import Sample, Subject

_WORD = re.compile(r"\d+(?:[.,]\d+)*|\w+")


def contains(answer: str, expected: str) -> bool:
    """Whether the expected words stand in the answer, in this order and next to each other.

    Letter case, punctuation and commas within numbers do not count: "1,200" is "1200".
    """
    said, wanted = _words(answer), _words(expected)
    size = len(wanted)
    return any(said[i : i + size] == wanted for i in range(len(said) - size + 1))


def _words(text: str) -> list[str]:
    return [each.replace(",", "") for each in _WORD.findall(text.casefold())]


class Quality(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """How often one provider and model was right. Repeats of a prompt count as one prompt."""

    upstream: str
    model: str
    prompts: int
    right: float
    """Share of right answers."""
    interval: ShareInterval
    """Wilson's 95 % interval of this share."""
    cost_usd: float | None
    """Mean cost of a call."""
    behind_best: float = 0.0
    """The best model's share less this one's, over the prompts that both answered."""
    behind_interval: ShareInterval | None = None
    """The 95 % interval of this difference, from the paired differences; None: fewer than two."""


class QualityChoice(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """The cheapest model whose share of right answers is at least ``bar``."""

    bar: float
    upstream: str | None
    """None: no model is surely good enough."""
    model: str | None
    possible: tuple[str, ...]
    """Cheaper ones whose interval contains the bar: more prompts could show that they hold it."""


def qualities(subjects: Iterable[Subject], samples: Sequence[Sample]) -> tuple[Quality, ...]:
    """Return the quality of each subject with judged answers, the best first."""
    shares = {subject: _shares(subject, samples) for subject in subjects}
    judged = {subject: found for subject, found in shares.items() if found}
    ordered = sorted(judged, key=lambda subject: -fmean(judged[subject].values()))
    return tuple(_quality(each, judged[each], judged[ordered[0]], samples) for each in ordered)


def choose(found: Sequence[Quality], bar: float) -> QualityChoice:
    """Return the cheapest model that surely holds a bar: the interval lies above it.

    A model without a known price counts as the dearest.
    """
    cheapest = sorted(found, key=lambda each: math.inf if each.cost_usd is None else each.cost_usd)
    sure = next((n for n, each in enumerate(cheapest) if each.interval.low >= bar), None)
    cheaper = cheapest if sure is None else cheapest[:sure]
    possible = tuple(
        f"{each.upstream} {each.model}" for each in cheaper if each.interval.high >= bar
    )
    chosen = None if sure is None else cheapest[sure]
    return QualityChoice(
        bar=bar,
        upstream=None if chosen is None else chosen.upstream,
        model=None if chosen is None else chosen.model,
        possible=possible,
    )


def _shares(subject: Subject, samples: Sequence[Sample]) -> dict[int, float]:
    """Return the share of right answers by prompt. A failed call is no answer."""
    by_prompt: dict[int, list[bool]] = defaultdict(list)
    for each in samples:
        if each.subject == subject and each.right is not None:
            by_prompt[each.prompt].append(each.right)
    return {prompt: fmean(right) for prompt, right in by_prompt.items()}


def _quality(
    subject: Subject,
    own: Mapping[int, float],
    best: Mapping[int, float],
    samples: Sequence[Sample],
) -> Quality:
    right = fmean(own.values())
    interval = wilson_interval(right * len(own), len(own)) or ShareInterval(0.0, 1.0)
    behind = [best[prompt] - own[prompt] for prompt in own if prompt in best]
    costs = [s.cost_usd for s in samples if s.subject == subject and s.cost_usd is not None]
    return Quality(
        upstream=subject.upstream,
        model=subject.model,
        prompts=len(own),
        right=right,
        interval=interval,
        cost_usd=fmean(costs) if costs else None,
        behind_best=fmean(behind) if behind else 0.0,
        behind_interval=paired_interval(behind),
    )


def paired_interval(differences: Sequence[float]) -> ShareInterval | None:
    """Return Student's 95 % interval of the mean of paired differences; None: fewer than two."""
    n = len(differences)
    if n < 2:
        return None
    half = student_t(n - 1) * stdev(differences) / math.sqrt(n)
    middle = fmean(differences)
    return ShareInterval(middle - half, middle + half)
