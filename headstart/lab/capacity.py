"""What a provider delivers at each number of calls at a time, and where its knee is. Pure.

The knee is N* = X / x of the asymptotic bounds of a closed system without think time (Lazowska,
Zahorjan, Graham and Sevcik, Quantitative System Performance, 1984, chapter 5): X is the largest
throughput, x that of one call alone. Below N* more calls at a time bring more answers a second;
beyond it each call only waits longer. A server that works on C calls at a time has its knee at C.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from headstart.lab.bench import SampleQuantiles, quantiles
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.lab.bench import Sample, Subject

CALLS_PER_SLOT = 4
"""A step makes at least so many calls for each call at a time: two of them are measured."""
SEEN = 1.25
"""A knee is reported if a step went so far beyond it."""
MOST_ERRORS = 0.10
"""A step whose calls fail more often tells the limits of a key, and no throughput."""


class LoadStep(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """What one provider and model did at one number of calls at a time."""

    concurrency: int
    calls: int
    errors: int
    answers_per_s: float | None
    """Whole answers a second; None: too few answers."""
    tokens_per_s: float | None
    """Answer tokens a second of all calls together."""
    ttft_s: SampleQuantiles | None
    call_tokens_per_s: SampleQuantiles | None
    """Tokens a second of one call after its first token; p95 is the slow end."""
    total_s: SampleQuantiles | None
    usd_per_hour: float | None
    """What an hour at this throughput costs."""

    @property
    def tokens_per_s_per_usd(self) -> float | None:
        """Answer tokens a second for one dollar an hour."""
        if not self.usd_per_hour or self.tokens_per_s is None:
            return None
        return self.tokens_per_s / self.usd_per_hour


class Capacity(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """The steps of one provider and model, and its knee."""

    upstream: str
    model: str
    region: str
    steps: tuple[LoadStep, ...]
    knee: float | None
    """The calls at a time from which more bring no more; None: no step went beyond it."""


def capacity_of(
    subject: Subject, samples: Iterable[Sample], price_per_hour: float | None = None
) -> Capacity:
    """Return the steps of one subject. ``price_per_hour`` is that of a machine of your own."""
    by_step: dict[int, list[Sample]] = defaultdict(list)
    for each in samples:
        if each.subject == subject and not each.cold:
            by_step[each.concurrency].append(each)
    steps = tuple(_step(at, by_step[at], price_per_hour) for at in sorted(by_step))
    return Capacity(
        upstream=subject.upstream,
        model=subject.model,
        region=subject.region,
        steps=steps,
        knee=knee_of(steps),
    )


def knee_of(steps: Sequence[LoadStep]) -> float | None:
    """Return the knee of steps in rising order, or None if no step went beyond it."""
    usable = [
        (step.concurrency, step.answers_per_s)
        for step in steps
        if step.answers_per_s and step.errors <= MOST_ERRORS * step.calls
    ]
    if len(usable) < 2:
        return None
    fewest, slowest = usable[0]
    knee = max(rate for _, rate in usable) / (slowest / fewest)
    return knee if usable[-1][0] >= SEEN * knee else None


def _step(at: int, samples: Sequence[Sample], price_per_hour: float | None) -> LoadStep:
    answered = [each for each in samples if each.error is None]
    window = _full_window(at, answered)
    rate = None if window is None else len(window[0]) / window[1]
    tokens = None if window is None else sum(s.completion_tokens for s in window[0]) / window[1]
    costs = [each.cost_usd for each in answered if each.cost_usd is not None]
    usd_per_hour = price_per_hour
    if usd_per_hour is None and costs and rate is not None:
        usd_per_hour = 3600.0 * rate * sum(costs) / len(costs)
    return LoadStep(
        concurrency=at,
        calls=len(samples),
        errors=len(samples) - len(answered),
        answers_per_s=rate,
        tokens_per_s=tokens,
        ttft_s=quantiles(each.ttft_s for each in answered),
        call_tokens_per_s=quantiles((s.tokens_per_s for s in answered), highest_first=True),
        total_s=quantiles(each.total_s for each in answered),
        usd_per_hour=usd_per_hour,
    )


def _full_window(at: int, answered: Sequence[Sample]) -> tuple[Sequence[Sample], float] | None:
    """Return the answers of the time in which all calls were under way, and its seconds.

    All calls begin together, so the first ``at`` answers come in a burst; the last ``at`` calls
    end while fewer and fewer are under way. Neither tells the throughput.
    """
    ordered = sorted(answered, key=lambda each: each.ended_s)
    begin = 0.0 if at == 1 else ordered[at - 1].ended_s if len(ordered) >= at else None
    inside = ordered if at == 1 else ordered[at : len(ordered) - at]
    if begin is None or not inside:
        return None
    seconds = inside[-1].ended_s - begin
    return (inside, seconds) if seconds > 0 else None
