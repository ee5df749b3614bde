"""Totals of the requests of the last day, for the live page. No row is kept."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from headstart.decisions import Outcome
from headstart.observe import Observation, Served
from headstart.types import Frozen
from headstart.usual_calls import (
    AvoidedCalls,
    MachineStats,
    MachineUse,
    RecentPrompts,
    UsualCalls,
    machine_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headstart.interfaces import Store
    from headstart.usual_calls import Machine

STEP_S = 60
"""Width of a bucket in seconds."""
DAY_S = 86_400.0
MOST_KEYS = 200
"""The most combinations that are kept apart, because clients choose the names of models and tags.
In further ones the model is ``other``, and tags are dropped."""
MOST_CALLS = 200
"""The latest calls of a kind with which hits are compared."""
MOST_SUMS = 20_000
"""The most sums in all buckets: some 20 MB. Beyond that, the oldest buckets are dropped."""
MOST_BARS = 60
BOUNDS_S = tuple(1e-4 * 10 ** (n / 8) for n in range(49))
"""Upper ends of the classes of a time, from 0.1 ms to 100 s: eight for each factor of ten."""
Z = 1.96
"""The two-sided 95 % quantile of the normal distribution."""
NONE = "(none)"


class LiveKey(NamedTuple):
    """The properties by which the page can filter."""

    caller: str
    route: str
    model: str
    endpoint: str
    tags: tuple[str, ...] = ()


class LiveFilter(NamedTuple):
    """The requests that are wanted; None: any."""

    caller: str | None = None
    route: str | None = None
    model: str | None = None
    endpoint: str | None = None
    tag: str | None = None

    def fits(self, key: LiveKey) -> bool:
        """Tell whether requests with this key are wanted."""
        *wanted, tag = self
        same = all(value in (None, has) for value, has in zip(wanted, key[:-1], strict=True))
        return same and (tag is None or tag in key.tags)


ANY = LiveFilter()


def key_of(row: Served) -> LiveKey:
    """Return the properties of a request for filters."""
    return LiveKey(row.caller or NONE, row.route or NONE, row.model or NONE, row.endpoint, row.tags)


class FirstTokens(Frozen, omit_defaults=False):
    """Quantiles of the time to first token in seconds, accurate to 15 %, over ``n`` requests."""

    n: int
    p50_s: float | None
    p95_s: float | None


class Bar(Frozen, omit_defaults=False):
    """The requests by outcome that arrived within one bar of the chart."""

    start: float
    outcomes: dict[str, int]


class Totals(Frozen, omit_defaults=False):
    """Totals over requests. Dollars are None while no price is known.

    All savings are net of our own costs, as in the report: hits and joined requests are compared
    with the latest calls of the same kind. ``…_margin`` is half of a 95 % interval, as if no two
    hits were of the same question.
    Costs and the saved share have the report's meaning (``report.values.Costs``).
    """

    requests: int
    outcomes: dict[str, int]
    failed: int
    hit_rate: float | None
    saved_s: float
    saved_s_margin: float
    saved_tokens: int
    paid_usd: float | None
    would_have_usd: float | None
    saved_usd: float | None
    saved_usd_margin: float | None
    saved_share: float | None
    hit_ttft: FirstTokens
    miss_ttft: FirstTokens


class LiveView(Frozen, omit_defaults=False):
    """The requests of a window of time. Times are Unix seconds."""

    at: float
    since: float
    totals: Totals
    bars: list[Bar]
    bar_s: float
    keys: list[LiveKey]
    """The combinations of caller, route, model, endpoint and tags that were seen."""
    machines: list[MachineStats]
    """The upstreams that are paid by the hour, with the calls of all callers and routes."""


class SquareSum:
    """The number, the sum and the sum of squares of a figure."""

    __slots__ = ("n", "squares", "total")

    def __init__(self) -> None:
        self.n, self.total, self.squares = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self.n += 1
        self.total += value
        self.squares += value * value

    def merge(self, other: SquareSum) -> None:
        """Add all values of another sample."""
        self.n += other.n
        self.total += other.total
        self.squares += other.squares

    def margin(self) -> float:
        """Return half of the 95 % interval of the total."""
        spread = self.squares - self.total**2 / self.n if self.n else 0.0
        return Z * math.sqrt(max(0.0, spread))


class BucketSums:
    """The sums of the requests with one key in one bucket."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.hits: Counter[int] = Counter()
        """Hits by the class of their time to first token."""
        self.misses: Counter[int] = Counter()
        self.avoided = AvoidedCalls()
        """The hits and the joined requests."""
        self.saved_usd = SquareSum()
        self.failed = self.saved_tokens = self.priced = 0
        self.overhead_s = self.paid_usd = self.would_have_usd = 0.0

    def add(self, row: Served, prefix_usd: float) -> None:
        """Count a request, or the cost of an audit.

        ``prefix_usd``: the savings that a hit loses because of the provider's prefix cache.
        """
        self.priced += row.has_known_cost
        self.paid_usd += row.cost_usd or 0.0
        if row.outcome.is_own_call:
            self.saved_tokens -= row.spent_tokens
            return
        self.outcomes[row.outcome.value] += 1
        self.would_have_usd += row.would_have_cost_usd - prefix_usd
        hit = row.outcome.is_hit
        if row.outcome is Outcome.MISS:
            self.overhead_s += row.overhead_s
        if not row.succeeded:
            self.failed += 1
            return
        self.saved_tokens += row.saved_tokens
        if row.saved_usd is not None:
            self.saved_usd.add(row.saved_usd - prefix_usd)
        if hit or row.outcome is Outcome.JOINED:
            self.avoided.add(row)
        if row.ttft_s is not None and (hit or row.outcome is Outcome.MISS):
            (self.hits if hit else self.misses)[bisect_left(BOUNDS_S, row.ttft_s)] += 1

    def merge(self, other: BucketSums) -> None:
        """Add the sums of another bucket or key."""
        self.outcomes.update(other.outcomes)
        self.hits.update(other.hits)
        self.misses.update(other.misses)
        self.avoided.merge(other.avoided)
        self.saved_usd.merge(other.saved_usd)
        for name in (
            "failed", "saved_tokens", "priced", "overhead_s", "paid_usd", "would_have_usd",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def totals(self, usual: UsualCalls) -> Totals:
        """Return the totals for the page. Hits are compared with the ``usual`` calls."""
        expected = usual.expected(self.avoided)
        requests = self.outcomes.total()
        hits = sum(self.outcomes[each.value] for each in Outcome if each.is_hit)
        priced = bool(self.priced or self.saved_usd.n)
        would_have = self.would_have_usd if priced else None
        saved = self.would_have_usd - self.paid_usd if priced else None
        return Totals(
            requests=requests,
            outcomes=dict(self.outcomes),
            failed=self.failed,
            hit_rate=hits / requests if requests else None,
            saved_s=expected.saved_s - self.overhead_s,
            saved_s_margin=Z * math.sqrt(expected.variance),
            saved_tokens=self.saved_tokens,
            paid_usd=self.paid_usd if priced else None,
            would_have_usd=would_have,
            saved_usd=saved,
            saved_usd_margin=self.saved_usd.margin() if priced else None,
            saved_share=saved / would_have if saved is not None and would_have else None,
            hit_ttft=_quantiles(self.hits),
            miss_ttft=_quantiles(self.misses),
        )


class LiveTotals:
    """Observes requests, and sums them up in buckets of a minute for a day.

    ``clock`` gives Unix seconds, ``machines`` the prices of upstreams that are paid by the hour.
    """

    observes: ClassVar = (Served,)

    def __init__(
        self, clock: Callable[[], float], machines: Mapping[str, Machine] | None = None
    ) -> None:
        self._clock = clock
        self._machines = machines or {}
        self._uses: dict[int, dict[str, MachineUse]] = {}
        """The calls to machines, by bucket and machine."""
        self._buckets: dict[int, dict[LiveKey, BucketSums]] = {}
        self._keys: set[LiveKey] = set()
        self._usual = UsualCalls(MOST_CALLS)
        self._prompts = RecentPrompts()
        self._held = 0
        self._seen: set[str] | None = None
        """The requests that came while the books are read; None: they are not being read."""
        self.version = 0
        """Grows with each request, so that a page notices changes."""

    async def load(self, store: Store, recent: Iterable[Served]) -> None:
        """Add the last day of a store's books. Observe from the call on. Raises StoreError.

        ``recent`` are requests of this process, which the store may not have yet.
        """
        rows = sorted(recent, key=lambda row: row.at)
        seen = self._seen = {row.id for row in rows}
        try:
            async for row in store.read_books(self._clock() - DAY_S):
                if row.id not in seen:
                    self._add(row)
        finally:
            self._seen = None
            for row in rows:
                self._add(row)

    def notify(self, observation: Observation) -> None:
        """Count a request of a cached path, or an audit."""
        if type(observation) is Served:
            if self._seen is not None:
                self._seen.add(observation.id)
            self._add(observation)

    def _add(self, row: Served) -> None:
        if row.outcome is Outcome.RELAY:
            return
        key = key_of(row)
        if key not in self._keys:
            if len(self._keys) >= MOST_KEYS:
                key = key._replace(model="other", tags=())
            self._keys.add(key)
        bucket = self._buckets.setdefault(int(row.at // STEP_S), {})
        if key not in bucket:
            bucket[key] = BucketSums()
            self._held += 1
            self._forget()
        bucket[key].add(row, self._prompts.prefix_usd(row))
        if self._machines:
            self._add_use(row)
        self._usual.add(row)
        self.version += 1

    def _add_use(self, row: Served) -> None:
        step = int(row.at // STEP_S)
        uses = self._uses.setdefault(step, {})
        for attempt in row.attempts:
            name = machine_name(attempt.upstream)
            machine = self._machines.get(name)
            if machine is not None:
                uses.setdefault(name, MachineUse()).add(attempt, machine)
        if len(self._uses) > DAY_S / STEP_S + 1:
            del self._uses[min(self._uses)]

    def _machine_stats(self, since: float, now: float) -> list[MachineStats]:
        """Return the figures since then, or since the first request that is known."""
        steps = [step for step in self._uses if (step + 1) * STEP_S > since]
        if not steps:
            return []
        seconds = max(STEP_S, now - max(since, min(steps) * STEP_S))
        found = []
        for name, machine in self._machines.items():
            whole = MachineUse()
            for step in steps:
                if name in self._uses[step]:
                    whole.merge(self._uses[step][name])
            found.append(whole.stats(name, machine.usd_per_hour, seconds))
        return found

    def _forget(self) -> None:
        oldest = (self._clock() - DAY_S) // STEP_S
        while (first := min(self._buckets)) < oldest or self._held > MOST_SUMS:
            if len(self._buckets) == 1:
                return
            self._held -= len(self._buckets.pop(first))

    def view(self, window_s: float, wanted: LiveFilter = ANY) -> LiveView:
        """Return the sums of the last ``window_s`` seconds, at most a day, in whole minutes."""
        now = self._clock()
        since = now - min(window_s, DAY_S)
        found = {
            step: [sums for key, sums in bucket.items() if wanted.fits(key)]
            for step, bucket in self._buckets.items()
            if (step + 1) * STEP_S > since
        }
        bar_s = STEP_S * max(1, math.ceil((now - since) / STEP_S / MOST_BARS))
        bars: dict[int, Counter[str]] = {}
        for step, parts in found.items():
            bar = bars.setdefault(int(step * STEP_S // bar_s), Counter())
            for sums in parts:
                bar.update(sums.outcomes)
        return LiveView(
            at=now,
            since=since,
            totals=_merged(sums for parts in found.values() for sums in parts).totals(self._usual),
            bars=[Bar(start=n * bar_s, outcomes=dict(bars[n])) for n in sorted(bars)],
            bar_s=bar_s,
            keys=sorted(self._keys),
            machines=self._machine_stats(since, now),
        )


def _merged(parts: Iterable[BucketSums]) -> BucketSums:
    whole = BucketSums()
    for each in parts:
        whole.merge(each)
    return whole


def _quantiles(classes: Counter[int]) -> FirstTokens:
    return FirstTokens(
        n=classes.total(), p50_s=_quantile(classes, 0.5), p95_s=_quantile(classes, 0.95)
    )


def _quantile(classes: Counter[int], share: float) -> float | None:
    """Return the middle, on a logarithmic scale, of the class that holds the quantile."""
    left = share * classes.total()
    for place in sorted(classes):
        left -= classes[place]
        if left <= 0:
            return BOUNDS_S[min(place, len(BOUNDS_S) - 1)] / 10 ** (1 / 16)
    return None
