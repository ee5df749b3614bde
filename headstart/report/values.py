"""The report as values, which ``headstart report --json`` prints. None means "not known"."""

from __future__ import annotations

from headstart.types import Frozen, LimitUse
from headstart.usual_calls import MachineStats  # noqa: TC001 - msgspec reads it


class ReportValue(Frozen, omit_defaults=False):
    """Base of the values below: an unknown value is written as null and not left out."""


class Interval(ReportValue):
    """An estimate with its 95 % confidence interval; no bounds if the sample is too small."""

    value: float
    low: float | None = None
    high: float | None = None


class LatencyQuantiles(ReportValue):
    """Quantiles of a time in seconds, over ``n`` requests."""

    n: int
    p50_s: float
    p95_s: float
    p99_s: float


class Times(ReportValue):
    """The times to the first content byte and to the last byte."""

    ttft: LatencyQuantiles | None
    total: LatencyQuantiles | None


class SavingsLine(ReportValue):
    """A part of the savings. Costs of the cache are negative. Times are sums over requests."""

    name: str
    requests: int
    total_s: float = 0.0
    ttft_s: float = 0.0
    tokens: int = 0
    usd: float | None = None


class Savings(ReportValue):
    """The savings, compared with what the requests would have taken with the cache off.

    The sums add up ``lines``: hits, joined requests and parts of batches save something; lookups in
    vain cost ``overhead_s``, and the audits, with the calls of a judge, ``audits_usd``.
    ``usd`` covers hits whose original call has a known price; ``unpriced_hits`` counts the others.
    """

    total_s: float
    ttft_s: float
    tokens: int
    usd: float | None
    usd_cold: float | None
    """The value of ``usd`` if the provider's prefix cache had held no prompt."""
    usd_prefix_cached: float | None
    """The value of ``usd`` if that cache had held the prompt of each hit."""
    lines: tuple[SavingsLine, ...]
    overhead_s: float
    audits: int
    """The number of our own calls that checked hits, with the calls of a judge."""
    audits_usd: float
    unpriced_hits: int
    estimated_hits: int
    """The hits whose tokens or cost are estimates, because the provider reported none."""
    uncompared_hits: int
    """The hits whose first token could not be compared: no call of this kind was streamed."""
    outlier_calls: int
    """The calls that were so slow that only a part of their time counts in the comparison."""
    outliers_s: float
    """The seconds by which ``total_s`` would be larger if all of their time counted."""

    def line(self, name: str) -> SavingsLine:
        """Return the line with a name. Raises StopIteration if there is none."""
        return next(line for line in self.lines if line.name == name)


class Costs(ReportValue):
    """The providers' bill in dollars, with Headstart and without it; None: no price is known.

    ``paid_usd`` sums all upstream calls. ``would_have_usd`` is the bill for one call a request:
    with the calls that hits saved, and without audits and calls whose answer no client got. Calls
    without a known price count as nothing.
    """

    paid_usd: float | None
    would_have_usd: float | None
    saved_share: float | None


class Group(ReportValue):
    """The requests that share a model, endpoint, caller, route or day, or all requests.

    ``requests`` counts failures too.
    """

    name: str
    requests: int
    outcomes: dict[str, int]
    failures: int
    hit_rate: float | None
    exact_rate: float | None
    semantic_rate: float | None
    hits: Times
    misses: Times
    savings: Savings
    costs: Costs


class CallStats(ReportValue):
    """The calls to one upstream and model. Each call counts, even if another one won."""

    name: str
    calls: int
    won: int
    lost: int
    """The calls that were cancelled because another was faster, or rejected by a judge."""
    failed: int
    abandoned: int
    roles: dict[str, int]
    """The number of calls by their reason."""
    ttft: LatencyQuantiles | None
    tokens_per_s: float | None
    """The median decoding speed after the first token."""
    completion_tokens: int
    usd: float | None
    estimated: int
    """The calls whose tokens are estimates, because the provider reported none."""


class ExtraCalls(ReportValue):
    """The calls beyond one for each request, and the cost of calls whose answer no client got."""

    requests: int
    calls_share: float
    usd: float
    usd_share: float | None


class ReshapedTokens(ReportValue):
    """The changes of prompts and answers of one kind, in tokens."""

    kind: str
    requests: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    saved_usd: float = 0.0
    """The savings of the provider's prompt cache; 0 for other kinds."""


class OutputExperiment(ReportValue):
    """The saving of an answer, compared with conversations that were left alone at random."""

    name: str
    answers: int
    held_out: int
    saved_tokens: Interval | None
    """The mean length of an answer that was left alone, less the mean length of the others. The
    answers of one conversation count as independent."""
    saved_share: float | None
    saved_s: Interval | None


class Estimate(ReportValue):
    """One sum of ``Savings``, estimated in two ways. Both are net of all costs of the cache.

    ``by_calls`` compares hits with recent calls, and is the sum in ``Savings``. ``by_holdout`` is
    the number of hits, times what a held-out request took on average. They ``disagree`` if the
    difference cannot be chance.
    """

    measure: str
    """``total_s``, ``ttft_s``, ``tokens`` or ``usd``."""
    by_calls: Interval | None
    by_holdout: Interval | None
    disagree: bool | None
    """None: there are too few requests to tell, or tokens are estimated."""


class Estimates(ReportValue):
    """How sure the savings are."""

    hits: int
    entries: int
    """The entries that answered them."""
    held_out: int
    """The would-be hits that were sent upstream at random, to be compared."""
    largest_entry: str
    largest_share: float
    """The share of the hits that the busiest entry answered."""
    estimates: tuple[Estimate, ...]


class UsageSums(ReportValue):
    """The usage of calls. None: the provider's export does not have it, or no price is known."""

    calls: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    usd: float | None = None


class Reconciled(ReportValue):
    """One day and model, in our books and in the provider's export."""

    day: str
    model: str
    """The common name, without its date: ``gpt-4o``."""
    ours: UsageSums
    theirs: UsageSums
    estimated: int
    """Our calls whose tokens are estimates, because the provider reported none."""
    differs: tuple[str, ...]
    """The sums that differ by more than 1 %."""


class Reconciliation(ReportValue):
    """Our books beside a provider's export, on the days that both cover."""

    lines: tuple[Reconciled, ...]
    ours: UsageSums
    theirs: UsageSums
    days_before_the_books: int
    """The days of the export that are older than the books."""


class RelayStats(ReportValue):
    """The relayed requests to one kind of path and one upstream."""

    name: str
    requests: int
    failures: int
    others_asked: int
    """The requests for which more than one upstream was asked."""
    bytes_up: int
    bytes_down: int
    total: LatencyQuantiles | None


class Point(ReportValue):
    """A point of a distribution: this share of requests took at most this time."""

    seconds: float
    share: float


class TimelineBar(ReportValue):
    """The requests by outcome that arrived within one bar of the timeline."""

    start: float
    outcomes: dict[str, int]


class Report(ReportValue):
    """All that ``headstart report`` shows. ``first`` and ``last`` are Unix seconds."""

    first: float | None
    last: float | None
    overall: Group
    models: tuple[Group, ...]
    endpoints: tuple[Group, ...]
    callers: tuple[Group, ...]
    """Groups by the names in ``server.client_keys``."""
    routes: tuple[Group, ...]
    days: tuple[Group, ...]
    """Groups by the day of arrival in UTC, the earliest first."""
    reasons: dict[str, int]
    """The reasons of misses and bypasses with their numbers, the most frequent first."""
    tags: tuple[Group, ...]
    """Groups by tag of ``x-headstart-tags``. A request with several tags is in several groups."""
    estimates: Estimates | None
    """None: there was no hit."""
    hit_curve: tuple[Point, ...]
    """The distribution of the time to first token of hits."""
    miss_curve: tuple[Point, ...]
    timeline: tuple[TimelineBar, ...]
    timeline_step_s: float
    calls: tuple[CallStats, ...]
    extra: ExtraCalls | None
    reshaped: tuple[ReshapedTokens, ...]
    trials: tuple[OutputExperiment, ...]
    relays: tuple[RelayStats, ...]
    reconciliation: Reconciliation | None = None
    """None: the books were not compared with an export."""
    machines: tuple[MachineStats, ...] = ()
    """The upstreams with ``price_per_hour``. Their dollars are in no other number."""
    limits: tuple[LimitUse, ...] = ()
    """The present use of the limits of client keys, not the use in the report's time."""
