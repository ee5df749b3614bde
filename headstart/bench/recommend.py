"""Which route the measurements speak for. docs/bench.md tells the rules in words."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from headstart.bench.figures import figures_of, first_tokens_s
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.bench.figures import Figures, Sample, Subject

MAX_ERROR_RATE = 0.10
"""Whoever fails more often is left out."""
LEAST_SAMPLES = 20
"""Fewer answers say too little of a tail or of a race."""
TAIL_RATIO = 6.0
"""A p95 of the time to first token this many medians long is a stall, not a wide body: lognormals
of sigma .8 and 1 have 3.7 and 5.2. From a hundred samples on it may be the p99, at twice the ratio
(6.4 and 10.3)."""
RACE_GAIN = 0.25
"""What the faster of two has to save of the median time to first token to be worth two prompts."""
RACE_TTFT_SHARE = 0.5
"""Racing shortens the wait for the first token: it must be this much of the whole."""
DISAGREEMENT = 0.15
"""By how much another provider has to be faster on short or on long answers."""
CHEAPER = 0.8
"""A price this much lower, as a share, is worth waiting for ..."""
SLOWER = 1.5
"""... if the p95 of the whole answer is not longer than this many times the fastest's."""

StrategyName = Literal["single", "fallback", "hedge", "race", "fastest", "cheapest"]


class Recommendation(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    """A route and the reasons for it."""

    strategy: StrategyName
    model: str
    """The name that all of them were asked for; where there are several, that of the weights."""
    upstreams: tuple[str, ...]
    within_s: float | None
    """``cheapest``: how long an answer may take."""
    race_billed: bool
    """``hedge``: also with providers that may bill a cancelled call in full."""
    why: tuple[str, ...]

    def toml(self) -> str:
        """Return the ``[[route]]`` table, its reasons as comments."""
        names = ", ".join(_quoted(name) for name in self.upstreams)
        lines = [line for reason in self.why for line in _commented(reason)]
        lines += [
            "[[route]]",
            'name = "bench"',
            f"match = {{ model = {_quoted(self.model)} }}",
            f'strategy = "{self.strategy}"',
            f"upstreams = [{names}]",
        ]
        if self.within_s is not None:
            lines.append(f"within_s = {self.within_s:g}")
        if self.race_billed:
            lines.append("race_billed = true")
        return "\n".join(lines) + "\n"


class _Rated(NamedTuple):
    subject: Subject
    figures: Figures
    samples: tuple[Sample, ...]
    """Warm and answered."""

    @property
    def typical_s(self) -> float:
        return self.figures.total_s.p50 if self.figures.total_s else math.inf

    @property
    def late_s(self) -> float:
        return self.figures.total_s.p95 if self.figures.total_s else math.inf

    @property
    def ttft_s(self) -> float:
        return self.figures.ttft_s.p50 if self.figures.ttft_s else math.inf

    def completion_s(self, tokens: float) -> float:
        """Time to first token and decoding, apart: what an answer of that length would take."""
        speed = self.figures.tokens_per_s
        return self.ttft_s + (tokens / speed.p50 if speed else 0.0)


class _Choice(NamedTuple):
    strategy: StrategyName
    order: tuple[_Rated, ...]
    why: str
    within_s: float | None = None
    race_billed: bool = False


def recommend(subjects: Sequence[Subject], samples: Sequence[Sample]) -> Recommendation | None:
    """Return the route for the largest group of equal models; None if nobody answers reliably.

    A pure function of its arguments. Ties in size go to the group that is faster.
    """
    notes: list[str] = []
    fit: list[_Rated] = []
    for subject in subjects:
        rated = _rate(subject, samples)
        if rated.samples and rated.figures.error_rate <= MAX_ERROR_RATE:
            fit.append(rated)
        else:
            notes.append(f"{subject.upstream} is left out: {_failures(rated.figures)}")
    if not fit:
        return None
    groups: dict[str, list[_Rated]] = defaultdict(list)
    for rated in sorted(fit, key=lambda rated: rated.typical_s):
        if rated.subject.upstream not in [
            r.subject.upstream for r in groups[rated.subject.weights]
        ]:
            groups[rated.subject.weights].append(rated)
    group = min(groups.values(), key=lambda members: (-len(members), members[0].typical_s))
    if len(groups) > 1:
        others = ", ".join(sorted(set(groups) - {group[0].subject.weights}))
        notes.append(f"other models do not give the same answers, so are not mixed in: {others}")
    choice = _choose(group)
    first = choice.order[0].subject
    alike = all(rated.subject.model == first.model for rated in choice.order)
    return Recommendation(
        strategy=choice.strategy,
        model=first.model if alike else first.weights,
        upstreams=tuple(rated.subject.upstream for rated in choice.order),
        within_s=choice.within_s,
        race_billed=choice.race_billed,
        why=(choice.why, *notes),
    )


def _rate(subject: Subject, samples: Sequence[Sample]) -> _Rated:
    own = tuple(
        each for each in samples if each.subject == subject and not each.cold and each.error is None
    )
    return _Rated(subject, figures_of(subject, samples), own)


def _failures(figures: Figures) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in figures.errors.items())
    return f"{sum(figures.errors.values())} of {figures.calls} calls failed ({kinds or 'none'})"


def _choose(group: Sequence[_Rated]) -> _Choice:
    """Return the first of the strategies whose condition the figures meet."""
    best = group[0]
    if len(group) == 1:
        reason = f"{best.subject.upstream} is the only one to choose"
        return _Choice("single", (best,), reason)
    enough = min(len(rated.samples) for rated in group) >= LEAST_SAMPLES
    for rule in (_hedge, _race, _fastest, _cheapest) if enough else ():
        if (choice := rule(group)) is not None:
            return choice
    reason = f"{best.subject.upstream} is the fastest; the rest take over when it fails"
    if not enough:
        reason += f" (fewer than {LEAST_SAMPLES} answers each: ask for more --calls)"
    return _Choice("fallback", tuple(group), reason)


def _hedge(group: Sequence[_Rated]) -> _Choice | None:
    """The typical call is quick, and some stall: ask a second one when the first is late.

    Unlike a race it wastes few calls, so it is worth it where they are billed in full, too.
    """
    pair = group[:2]
    best = pair[0]
    found = best.figures.ttft_s
    if found is None:
        return None
    late, name = found.p95, "p95"
    if late < TAIL_RATIO * found.p50 and len(best.samples) >= 100:
        late, name = found.p99 / 2, "p99"
    if late < TAIL_RATIO * found.p50:
        return None
    told = found.p95 if name == "p95" else found.p99
    reason = (
        f"{best.subject.upstream} stalls: its {name} to the first token, {told:.2f} s, is "
        f"{told / found.p50:.1f} times its median, and a second provider rarely stalls with it"
    )
    billed = [rated.subject.upstream for rated in pair if not rated.subject.cancels_billing]
    if billed:
        reason += (
            f"; {' and '.join(billed)} may bill cancelled calls in full: extra_cost limits that to "
            "5 % of what the route costs"
        )
    return _Choice("hedge", tuple(pair), reason, race_billed=bool(billed))


def _race(group: Sequence[_Rated]) -> _Choice | None:
    """Nobody is always first, and the loser costs little: ask both at once."""
    racers = [rated for rated in group if rated.subject.cancels_billing][:2]
    if len(racers) < 2 or racers[0] is not group[0]:
        return None
    first, second = (first_tokens_s(rated.samples) for rated in racers)
    alone = median(first)
    faster = median(min(one, other) for one in first for other in second)
    gain = 1 - faster / alone if alone else 0.0
    if gain < RACE_GAIN or alone < RACE_TTFT_SHARE * racers[0].typical_s:
        return None
    reason = (
        f"the faster of the two has its first token {gain:.0%} sooner than "
        f"{racers[0].subject.upstream} alone, and neither bills what is cancelled"
    )
    return _Choice("race", tuple(racers), reason)


def _fastest(group: Sequence[_Rated]) -> _Choice | None:
    """One is first on short answers and another on long ones: decide call by call."""
    lengths = sorted(each.completion_tokens for rated in group for each in rated.samples)
    short, long = lengths[len(lengths) // 10], lengths[len(lengths) * 9 // 10]
    best_short = min(group, key=lambda rated: rated.completion_s(short))
    best_long = min(group, key=lambda rated: rated.completion_s(long))
    if best_short is best_long:
        return None
    loses_short = 1 - best_short.completion_s(short) / best_long.completion_s(short)
    loses_long = 1 - best_long.completion_s(long) / best_short.completion_s(long)
    if min(loses_short, loses_long) < DISAGREEMENT:
        return None
    reason = (
        f"{best_short.subject.upstream} is {loses_short:.0%} faster on answers of {short} tokens, "
        f"{best_long.subject.upstream} {loses_long:.0%} on those of {long}"
    )
    return _Choice("fastest", tuple(group), reason)


def _cheapest(group: Sequence[_Rated]) -> _Choice | None:
    """Another one costs much less and is hardly later."""
    best = group[0]
    costs = {rated.subject.upstream: rated.figures.cost_usd for rated in group}
    if not (price := costs[best.subject.upstream]):
        return None
    for rated in sorted(group, key=lambda rated: costs[rated.subject.upstream] or math.inf):
        cost = costs[rated.subject.upstream]
        if cost is None or cost > CHEAPER * price or rated.late_s > SLOWER * best.late_s:
            continue
        reason = (
            f"{rated.subject.upstream} costs {1 - cost / price:.0%} less than "
            f"{best.subject.upstream}, and 95 % of its answers are there in {rated.late_s:.2f} s"
        )
        within_s = float(f"{rated.late_s * 1.1:.2g}")
        order = (rated, *(other for other in group if other is not rated))
        return _Choice("cheapest", order, reason, within_s)
    return None


def _commented(reason: str) -> list[str]:
    return textwrap.wrap(reason, 78, initial_indent="# ", subsequent_indent="#   ")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
