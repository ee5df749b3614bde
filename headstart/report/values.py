"""The report as values, which ``headstart report --json`` prints. None means "not known"."""

from __future__ import annotations

from headstart.types import Frozen


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


class Savings(ReportValue):
    """The savings of hits, compared with the calls that made the same answers.

    ``total_s`` and ``ttft_s`` are sums over requests, less the hits' own times, and less
    ``overhead_s``: the time that other requests spent on looking for a hit. ``usd`` covers hits
    whose original call has a known price, less ``audits_usd``, the cost of checking hits.
    ``unpriced_hits`` counts the other hits.
    """

    total_s: float
    ttft_s: float
    overhead_s: float
    tokens: int
    usd: float | None
    audits: int
    """The number of our own calls that checked hits."""
    audits_usd: float
    unpriced_hits: int
    estimated_hits: int
    """The hits whose tokens or cost are estimates, because the provider reported none."""


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
    requests: int
    tokens_before: int
    tokens_after: int
    saved_usd: float = 0.0
    """What the provider's prompt cache saved; 0 for other kinds."""


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


class Holdout(ReportValue):
    """The savings of hits, measured with would-be hits that were sent upstream at random.

    ``by_hits`` is the sum of each hit's saving, compared with its original call. ``by_holdout`` is
    the number of hits, times the mean time of a held-out request less the mean time of a hit.
    ``difference_s`` is the first less the second, for one hit. The estimates ``disagree`` if its
    interval excludes zero.
    """

    hits: int
    held_out: int
    by_hits_s: Interval | None
    by_holdout_s: Interval | None
    by_hits_usd: Interval | None
    by_holdout_usd: Interval | None
    difference_s: Interval | None
    disagree: bool | None


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
    """By the names in ``server.client_keys``."""
    routes: tuple[Group, ...]
    days: tuple[Group, ...]
    """By the day of arrival in UTC, the earliest first."""
    reasons: dict[str, int]
    """The reasons of misses and bypasses with their numbers, the most frequent first."""
    holdout: Holdout | None
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
