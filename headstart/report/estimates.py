"""How sure the savings are: intervals, and a second estimate from held-out requests.

For example, 1,000 hits took 0.1 s each, and recent calls of the same kind took 2.0 s on average. So
the hits saved about 1,900 s. The interval around this sum follows from the differences between
calls. If 30 would-be hits were sent to the provider (held out) and took 2.2 s on average, the
second estimate is 2,100 s. The two agree if their difference can be chance.

The parts of this file:

1. Quantiles and confidence intervals over plain sequences of numbers.
2. ``PrefixReads``: how much less money the hits saved, because the provider would have read their
   prompts from its own cache at a lower price.
3. ``EstimateAccounts``: the two estimates, by recent calls and by holdout.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from math import exp, fsum, lgamma, log, sqrt
from statistics import NormalDist, fmean, variance
from typing import TYPE_CHECKING, NamedTuple

from headstart.attempts import PREFIX_TOKENS, PREFIX_TTL_S
from headstart.decisions import Outcome
from headstart.report.values import Estimate, Estimates, Interval, LatencyQuantiles, Point, Savings
from headstart.types import ulid_time
from headstart.usual_calls import (
    MINUTE_S,
    UsualCall,
    freedom_of,
    kind_of,
    original_call,
    own_times,
    tokens_of,
    usual_call,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.observe import Served
    from headstart.usual_calls import AvoidedCalls, CallKind, UsualCalls


MIN_SAMPLE = 5
"""Fewest values for an interval. The interval of a smaller sample would say more about the formula
than about the data."""
CURVE_POINTS = 200
"""Most points of a distribution in the report."""
_Z = NormalDist().inv_cdf(0.975)
"""The two-sided 95 % quantile of the normal distribution."""
_DOUBT = 0.05
"""The probability of error of the exact bound."""
_STEPS = 50
"""Halvings of the range in which the exact bound lies."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of a sorted sequence with a value, with linear interpolation."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def quantiles(values: Sequence[float]) -> LatencyQuantiles | None:
    """Return p50, p95 and p99, or None without values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95, p99 = (quantile(ordered, share) for share in (0.50, 0.95, 0.99))
    return LatencyQuantiles(n=len(ordered), p50_s=p50, p95_s=p95, p99_s=p99)


def curve(values: Sequence[float]) -> tuple[Point, ...]:
    """Return the distribution at ``CURVE_POINTS`` points or fewer."""
    ordered = sorted(values)
    steps = min(len(ordered), CURVE_POINTS)
    return tuple(
        Point(seconds=ordered[(i * len(ordered)) // steps - 1], share=i / steps)
        for i in range(1, steps + 1)
    )


def difference_interval(left: Sequence[float], right: Sequence[float]) -> Interval | None:
    """Return mean(left) - mean(right) with Welch's interval."""
    if not left or not right:
        return None
    difference = fmean(left) - fmean(right)
    if min(len(left), len(right)) < MIN_SAMPLE:
        return Interval(value=difference)
    a, b = variance(left) / len(left), variance(right) / len(right)
    half = 0.0
    if a + b > 0:
        freedom = (a + b) ** 2 / (a**2 / (len(left) - 1) + b**2 / (len(right) - 1))
        half = student_t(freedom) * sqrt(a + b)
    return Interval(value=difference, low=difference - half, high=difference + half)


def student_t(freedom: float) -> float:
    """Return Student's t at 97.5 % by Cornish-Fisher (Abramowitz and Stegun 26.7.5).

    It differs from the tables by less than 0.3 % from 4 degrees of freedom on.
    """
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


class ShareInterval(NamedTuple):
    """A two-sided 95 % interval of a share."""

    low: float
    high: float


def wilson_interval(count: float, of: float) -> ShareInterval | None:
    """Return the 95 % score interval of the share ``count / of`` (Wilson 1927).

    None when ``of`` is 0.
    """
    if not of:
        return None
    share, z2 = count / of, _Z * _Z
    middle = share + z2 / (2 * of)
    spread = _Z * sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    scale = 1 + z2 / of
    return ShareInterval(max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def least_share(count: int, of: int) -> float:
    """Return the exact one-sided lower bound of a share (Clopper and Pearson 1934).

    A true share below the bound would give ``count`` or more with a probability of at most 5 %.
    """
    if count <= 0:
        return 0.0
    low, high = 0.0, count / of
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _at_least(count, of, middle) > _DOUBT:
            high = middle
        else:
            low = middle
    return low


def _at_least(count: int, of: int, share: float) -> float:
    """Return the probability of ``count`` or more among ``of``."""
    if share <= 0:
        return 0.0
    logs = [
        lgamma(of + 1) - lgamma(below + 1) - lgamma(of - below + 1)
        + below * log(share) + (of - below) * log(1 - share)
        for below in range(count)
    ]  # fmt: skip
    peak = max(logs)
    return 1.0 - exp(peak) * fsum(exp(each - peak) for each in logs)


# --- prefix reads ---------------------------------------------------------------------------------

FEWEST_PAIRS = 10
"""Fewest questions that were asked twice, to know how much two calls for one question differ."""


class PrefixSums:
    """The savings that the hits of a group lose because of the provider's prefix cache."""

    __slots__ = ("likely_usd", "most_usd")

    def __init__(self) -> None:
        self.likely_usd = 0.0
        """The dollars, by the reads that the other calls of the same prompts show."""
        self.most_usd = 0.0
        """The dollars if the provider had read the prompt of each hit from that cache."""


class _PrefixHit(NamedTuple):
    """A hit that might have been a prefix read."""

    entry: str
    at: float
    usd: float
    """What a read of the whole prompt would have saved."""
    sinks: Sequence[PrefixSums]


class _RepeatedPrefix(NamedTuple):
    """A call for a prompt that was asked before."""

    entry: str
    at: float
    cached_tokens: int
    prompt_tokens: int


class PrefixReads:
    """Finds the hits whose prompts the provider would have read from its prefix cache.

    With Headstart's cache off, it would have done so if anybody had asked the prompt shortly
    before. Such a call costs less, so the hit saved less. Call ``settle`` after all rows were
    added.
    """

    def __init__(self) -> None:
        self._asked: defaultdict[str, list[float]] = defaultdict(list)
        """By entry, the times at which clients asked its prompt."""
        self._called: defaultdict[str, list[float]] = defaultdict(list)
        """By entry, the times at which the provider itself was asked. Hits keep a prompt out of the
        provider's cache."""
        self._hits: list[_PrefixHit] = []
        self._repeats: list[_RepeatedPrefix] = []
        """The calls from which the share of a prompt that the provider reads is known."""
        self._share = 1.0

    def add(self, row: Served, sinks: Sequence[PrefixSums]) -> None:
        """Look at a request. ``settle`` adds what it loses to each of ``sinks``."""
        entry = row.entry or row.neighbor
        if entry is None or not row.succeeded or row.prompt_tokens < PREFIX_TOKENS:
            return
        if row.outcome.is_hit:
            self._asked[entry].append(row.at)
            self._hits.append(_PrefixHit(entry, row.at, row.saved_prefix_usd, sinks))
        elif row.holdout or _asked_again(row):
            cached = sum(each.cached_tokens for each in row.attempts)
            self._repeats.append(_RepeatedPrefix(entry, row.at, cached, row.prompt_tokens))
            self._called[entry].append(row.at)
            if row.holdout:
                self._asked[entry].append(row.at)

    def settle(self) -> None:
        """Add to each sink the savings that its hits lose because of prefix reads."""
        for times in (*self._asked.values(), *self._called.values()):
            times.sort()
        self._share = self._read_share()
        # ``settle`` may be called again after further rows.
        for hit in self._hits:
            for sink in hit.sinks:
                sink.likely_usd = 0.0
        for hit in self._hits:
            usd = hit.usd * self.share_at(hit.entry, hit.at)
            for sink in hit.sinks:
                sink.likely_usd += usd

    def share_at(self, entry: str, at: float) -> float:
        """Return the share of a prompt that would have been read from the provider's cache."""
        return self._share if _lately(self._asked[entry], entry, at) else 0.0

    def _read_share(self) -> float:
        """Return the share of a repeated prompt that the provider reads from its prefix cache.

        Without enough repeats it is taken to be all of it, so that savings are not overstated.
        """
        soon = [
            call for call in self._repeats if _lately(self._called[call.entry], call.entry, call.at)
        ]
        if len(soon) < FEWEST_PAIRS:
            return 1.0
        cached = sum(call.cached_tokens for call in soon)
        return min(1.0, cached / sum(call.prompt_tokens for call in soon))


def _lately(times: Sequence[float], entry: str, at: float) -> bool:
    """Tell whether a prompt was asked shortly before, at one of the times or for its entry."""
    place = bisect_left(times, at)
    before = times[place - 1] if place else ulid_time(entry)
    return before is not None and at - before <= PREFIX_TTL_S


def _asked_again(row: Served) -> bool:
    """Tell whether an audit asked the provider again. The other audits are calls of the judge."""
    return row.outcome is Outcome.AUDIT and row.reason != "judge"


# --- the estimates --------------------------------------------------------------------------------

FEWEST_CALLS = 20
"""Fewest usual calls, and fewest entries with hits, for an interval of the sum of the hits."""
SURE = 1.64
"""The one-sided 95 % quantile of the normal distribution."""
MEASURES = ("total_s", "ttft_s", "tokens", "usd")
TESTED = ("total_s", "ttft_s", "usd")
"""The measures in which the two estimates are compared."""
_Z_ALL = 2.394
"""The two-sided quantile of the normal distribution with which three tests together raise a false
alarm in 5 % of all cases (Bonferroni)."""


class Mean(NamedTuple):
    """A mean with its variance and degrees of freedom."""

    value: float
    variance: float
    freedom: float

    @property
    def error(self) -> float:
        """The standard error as a share of the mean."""
        return sqrt(self.variance) / self.value if self.value > 0 else 0.0


class Variance(NamedTuple):
    """An estimated variance with its degrees of freedom."""

    value: float
    freedom: float


class CountedValue(NamedTuple):
    """A value, and how often it occurs."""

    number: int
    value: float


class Spread(NamedTuple):
    """The variance of single values, and their kurtosis: 3 if they are normal."""

    variance: float = 0.0
    kurtosis: float = 1.0


def mean_of(values: Sequence[float], hits: int, known: Spread) -> Mean | None:
    """Return the mean of a sample; None if it is too small.

    It is used as the mean of the hits, which are a sample, too: so the variances of both means are
    added. ``known`` is the spread of such values in a larger sample: a small one may lack the few
    large values.
    """
    if len(values) < MIN_SAMPLE:
        return None
    mean = fmean(values)
    of_value = max(known.variance, variance(values, mean))
    of_means = of_value * (1 / len(values) + 1 / hits)
    freedom = freedom_of([value - mean for value in values])
    if known.kurtosis > 1.0:  # as in ``freedom_of``
        freedom = min(freedom, 2 * len(values) / (known.kurtosis - 1))
    return Mean(mean, of_means, freedom)


def spread_of(values: Sequence[CountedValue]) -> Spread:
    """Return the spread of values."""
    total = sum(each.number for each in values)
    if not total:
        return Spread()
    mean = sum(each.number * each.value for each in values) / total
    squares = sum(each.number * (each.value - mean) ** 2 for each in values)
    fourth = sum(each.number * (each.value - mean) ** 4 for each in values)
    return Spread(squares / total, total * fourth / squares**2 if squares else 1.0)


def interval(found: Mean, times: float, less: float = 0.0) -> Interval:
    """Return the 95 % interval of ``found`` times a number, less an amount that is known exactly.

    Times and costs are above zero, and few of them are long: the interval is symmetrical on a
    logarithmic scale.
    """
    value, half = found.value * times, student_t(max(4.0, found.freedom)) * found.error
    return Interval(
        value=value - less, low=value * exp(-half) - less, high=value * exp(half) - less
    )


class _Answer:
    """The hits on one stored answer, and its figures."""

    __slots__ = ("hits", "kind", "original", "priced", "tokens", "usd")

    def __init__(self, row: Served) -> None:
        self.hits = self.priced = 0
        self.kind, self.tokens = kind_of(row), row.saved_tokens
        self.usd = None if row.saved_usd is None else row.saved_usd - row.saved_prefix_usd
        """The cost as if the provider's prefix cache had held the prompt, so that calls can be
        compared."""
        self.original = original_call(row)
        """The call that made the answer."""


class _Repeat(NamedTuple):
    """A call for a question whose answer was in the cache."""

    entry: str
    call: UsualCall
    kind: CallKind
    tokens: int
    usd: float | None
    """The cost as if the provider's prefix cache had held the prompt."""
    cost_usd: float | None
    prefix_usd: float
    """What a read of the whole prompt from that cache would have saved."""


class EstimateAccounts:
    """Collects the hits and the calls that repeat their questions, and makes both estimates.

    ``add`` all rows of the books, then ask for ``estimates``.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Answer] = {}
        """The answers that were hit, by the ids of their entries."""
        self._hits = self._priced = 0
        """The number of hits, and of hits with a known price."""
        self._own_s = self._own_first_s = 0.0
        """The seconds that the hits themselves took: in all, and to their first tokens."""
        self._repeats: list[_Repeat] = []
        self._held_out: list[_Repeat] = []
        """The would-be hits that were sent upstream."""

    def add(self, row: Served) -> None:
        """Look at a request or an audit."""
        if not row.succeeded:
            return
        if row.outcome.is_hit:
            self._add_hit(row)
        elif _asked_again(row) and row.neighbor is not None:
            audit = UsualCall(row.at, row.total_s, None, tokens_of(row))
            self._repeats.append(_repeat_of(row, row.neighbor, audit))
        elif row.holdout and (call := usual_call(row)) is not None:
            repeat = _repeat_of(row, row.entry or "", call)
            self._held_out.append(repeat)
            if row.entry is not None:
                self._repeats.append(repeat)

    def _add_hit(self, row: Served) -> None:
        name = row.entry or ""
        if name not in self._entries:
            self._entries[name] = _Answer(row)
        entry = self._entries[name]
        entry.hits += 1
        entry.priced += row.saved_usd is not None
        self._hits += 1
        self._priced += row.saved_usd is not None
        own_s, own_first_s = own_times(row)
        self._own_s += own_s
        self._own_first_s += own_first_s

    def estimates(
        self, avoided: AvoidedCalls, usual: UsualCalls, prefix: PrefixReads, savings: Savings
    ) -> Estimates | None:
        """Return both estimates of each sum in ``savings``; None if there was no hit.

        ``avoided`` are the hits. Everything but the hits' gross saving is exact, so it only shifts
        the intervals.
        """
        if not self._hits:
            return None
        by_calls = self._means_by_calls(avoided, usual)
        by_holdout = self._means_by_holdout(usual, prefix)
        found = [
            self._estimate(name, savings, by_calls.get(name), by_holdout.get(name))
            for name in MEASURES
        ]
        largest, hits = max(
            ((name, each.hits) for name, each in self._entries.items()), key=lambda each: each[1]
        )
        return Estimates(
            hits=self._hits,
            entries=len(self._entries),
            held_out=len(self._held_out),
            largest_entry=largest,
            largest_share=hits / self._hits,
            estimates=tuple(found),
        )

    def _estimate(
        self, name: str, savings: Savings, of_calls: Mean | None, held_out: Mean | None
    ) -> Estimate:
        """Return the estimates of one measure, from the means that a hit would have taken.

        The mean ``of_calls`` gives only the width of an interval around the sum in ``savings``.
        """
        saved, saved_by_hits = getattr(savings, name), getattr(savings.line("hits"), name)
        if saved is None or saved_by_hits is None:
            return Estimate(measure=name, by_calls=None, by_holdout=None, disagree=None)
        own = {"total_s": self._own_s, "ttft_s": self._own_first_s}.get(name, 0.0)
        avoided = saved_by_hits + own  # what the calls would have taken that the hits avoided
        known = avoided - saved  # what was taken in truth: it is known exactly
        hits = self._priced if name == "usd" else self._hits
        by_calls, by_holdout, disagree = Interval(value=saved), None, None
        if of_calls is not None:
            of_calls = of_calls._replace(value=avoided / hits)
            by_calls = interval(of_calls, hits, known)
        if held_out is not None:
            by_holdout = interval(held_out, hits, known)
        if of_calls is not None and held_out is not None and name in TESTED:
            disagree = _disagree(of_calls, held_out)
        return Estimate(measure=name, by_calls=by_calls, by_holdout=by_holdout, disagree=disagree)

    # --- by recent calls ----------------------------------------------------------------------

    def _means_by_calls(self, avoided: AvoidedCalls, usual: UsualCalls) -> dict[str, Mean]:
        """Return the means of a hit, by measure, where they have an interval."""
        question_share = self._question_share(usual)
        means = {
            "total_s": self._mean_time(avoided, usual, question_share, first=False),
            "ttft_s": self._mean_time(avoided, usual, question_share, first=True),
            "tokens": self._mean_of_entries("tokens"),
            "usd": self._mean_of_entries("usd"),
        }
        return {name: mean for name, mean in means.items() if mean is not None}

    def _mean_time(
        self, avoided: AvoidedCalls, usual: UsualCalls, question_share: float, *, first: bool
    ) -> Mean | None:
        """Return the mean time that hits would have taken; None: too few calls are known.

        All hits on an entry ask the same question, so they differ from the usual times together:
        the variance of n such hits is n² times that of one. It has two parts: the share that the
        question causes, and the lengths of answers to one question.
        """
        expected = usual.expected(avoided, first=first)
        models = {kind: usual.times_of(kind, first=first) for kind in avoided}
        used = {each for each in models.values() if each is not None}
        if expected.requests < self._hits or sum(each.calls for each in used) < FEWEST_CALLS:
            return None
        lengths = self._variance_between_calls("tokens")
        spread = expected.variance
        for entry in self._entries.values():
            model = models.get(entry.kind)
            if model is not None:
                of_length = 0.0 if lengths is None else model.slope**2 * lengths.value
                spread += (question_share * model.variance + of_length) * entry.hits**2
        freedom = sum(each.freedom for each in used)
        return Mean(expected.seconds / self._hits, spread / self._hits**2, freedom)

    def _by_entry(self, name: str) -> list[CountedValue]:
        """Return a figure (``tokens`` or ``usd``) of each entry, as often as it had hits."""
        entries = self._entries.values()
        if name == "tokens":
            return [CountedValue(each.hits, float(each.tokens)) for each in entries]
        return [CountedValue(each.priced, each.usd) for each in entries if each.usd is not None]

    def _mean_of_entries(self, name: str) -> Mean | None:
        """Return the mean of a figure over the calls that made the entries.

        Each entry counts as often as it had hits, and n hits on it have n² times the variance.
        """
        values, of_call = self._by_entry(name), self._variance_between_calls(name)
        hits = sum(each.number for each in values)
        if not hits or of_call is None:
            return None
        mean = sum(each.number * each.value for each in values) / hits
        squares = sum(each.number**2 for each in values)
        return Mean(mean, of_call.value * squares / hits**2, of_call.freedom)

    def _variance_between_calls(self, name: str) -> Variance | None:
        """Return how much a figure differs between two calls for one question.

        Without enough repeats, it is taken to differ as much as between questions.
        """
        pairs = self._pairs(name)
        if len(pairs) >= FEWEST_PAIRS:
            return Variance(sum((a - b) ** 2 for a, b in pairs) / 2 / len(pairs), len(pairs))
        known = [each.value for each in self._by_entry(name)]
        return Variance(variance(known), len(known) - 1) if len(known) >= FEWEST_CALLS else None

    def _pairs(self, name: str) -> list[tuple[float, float]]:
        """Return a figure of the call that made an entry, and the figure of a later call."""
        found = []
        for repeat in self._repeats:
            entry = self._entries.get(repeat.entry)
            if entry is None:
                continue
            a, b = getattr(entry, name), getattr(repeat, name)
            if a is not None and b is not None:
                found.append((float(a), float(b)))
        return found

    def _question_share(self, usual: UsualCalls) -> float:
        """Return the share of the variance of a call's time that its question causes, from 0 to 1.

        It is the correlation between two calls for one question, at its upper bound: a larger share
        makes the intervals wider. Without enough pairs the share is taken to be 1.
        """
        products, squares = [], []
        for repeat in self._repeats:
            entry = self._entries.get(repeat.entry)
            if entry is None:
                continue
            model = usual.times_of(repeat.kind)
            if model is None or not model.variance:
                continue
            first, second = (
                min(call.total_s, model.fence_s)
                - model.expected_s(call.at // MINUTE_S, call.tokens)
                for call in (entry.original, repeat.call)
            )
            products.append(first * second / model.variance)
            squares.append((first * second / model.variance) ** 2)
        if len(products) < FEWEST_PAIRS:
            return 1.0
        correlation, error = fmean(products), sqrt(fmean(squares) / len(products))
        return max(0.0, min(1.0, correlation + SURE * error))

    # --- by holdout -----------------------------------------------------------------------------

    def _means_by_holdout(self, usual: UsualCalls, prefix: PrefixReads) -> dict[str, Mean]:
        """Return the means of a held-out request, by measure; outliers are cut as elsewhere.

        With the cache off, its prompt could have been in the provider's cache more often.
        """
        values: dict[str, list[float]] = {name: [] for name in MEASURES}
        known: dict[str, list[float]] = {"total_s": [0.0], "ttft_s": [0.0]}
        for held in self._held_out:
            call, usd = held.call, held.cost_usd
            for name, seconds in (("total_s", call.total_s), ("ttft_s", call.ttft_s)):
                model = usual.times_of(held.kind, first=name == "ttft_s")
                if seconds is not None and model is not None:
                    values[name].append(min(seconds, model.fence_s))
                    known[name].append(model.variance_of_all)
            values["tokens"].append(float(held.tokens))
            if usd is not None:
                read = prefix.share_at(held.entry, call.at) if held.prefix_usd else 0.0
                values["usd"].append(usd - held.prefix_usd * read)
        spreads = {name: Spread(fmean(each)) for name, each in known.items()}
        # Hits and held-out requests ask the same questions, and there are more hits.
        spreads |= {name: spread_of(self._by_entry(name)) for name in ("tokens", "usd")}
        means = {name: mean_of(each, self._hits, spreads[name]) for name, each in values.items()}
        return {name: mean for name, mean in means.items() if mean is not None}


def _repeat_of(row: Served, entry: str, call: UsualCall) -> _Repeat:
    prefix_usd = sum(each.prefix_usd for each in row.attempts)
    usd = None if row.cost_usd is None else row.cost_usd - prefix_usd
    tokens = row.spent_tokens
    return _Repeat(entry, call, kind_of(row), tokens, usd, row.cost_usd, prefix_usd)


def _disagree(left: Mean, right: Mean) -> bool:
    """Tell whether two means differ by more than chance."""
    if left.value <= 0 or right.value <= 0:
        return (left.value > 0) != (right.value > 0)
    error = sqrt(left.error**2 + right.error**2)
    return abs(log(left.value / right.value)) > _Z_ALL * error + 1e-9
