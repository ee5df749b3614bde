"""The report as values; ``headstart report --json`` prints them. None means: not known."""

from __future__ import annotations

from headstart.types import Frozen


class Value(Frozen, omit_defaults=False):
    """Base of the values below: what is not known is written as null, never left out."""


class Interval(Value):
    """An estimate and its 95 % confidence interval; the bounds are None for too small a sample."""

    value: float
    low: float | None = None
    high: float | None = None


class Quantiles(Value):
    """Seconds, over ``n`` requests."""

    n: int
    p50_s: float
    p95_s: float
    p99_s: float


class Times(Value):
    """Time to the first content byte, and to the last."""

    ttft: Quantiles | None
    total: Quantiles | None


class Savings(Value):
    """What hits saved, against what the same answers took and cost when they were made.

    ``total_s`` and ``ttft_s`` are sums over requests and net: a hit's own time is subtracted, and
    so is ``overhead_s``, which requests that were no hit spent on looking for one. ``usd`` covers
    hits whose original has a known price, less ``audits_usd``, what checking hits cost;
    ``unpriced_hits`` counts the others.
    """

    total_s: float
    ttft_s: float
    overhead_s: float
    tokens: int
    usd: float | None
    audits: int
    """Our own calls, made to check hits."""
    audits_usd: float
    unpriced_hits: int
    estimated_hits: int
    """Hits whose tokens or cost were estimated, not reported by the provider."""


class Group(Value):
    """Requests to one model or endpoint, or all of them. ``requests`` counts failures too."""

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


class Calls(Value):
    """Upstream calls to one provider and model. Each call counts, whoever won."""

    name: str
    calls: int
    won: int
    lost: int
    """Cancelled because another was faster, or not let pass by a judge."""
    failed: int
    abandoned: int
    roles: dict[str, int]
    """Why they were made."""
    ttft: Quantiles | None
    tokens_per_s: float | None
    """Median decoding speed after the first token."""
    completion_tokens: int
    usd: float | None
    estimated: int
    """Calls whose tokens were estimated, not reported by the provider."""


class Extra(Value):
    """Calls beyond one for each request that went upstream, and what did not answer anybody."""

    requests: int
    calls_share: float
    usd: float
    usd_share: float | None


class Reshaped(Value):
    """What was done to prompts and answers, by kind, in tokens."""

    kind: str
    requests: int
    tokens_before: int
    tokens_after: int


class Trial(Value):
    """What is saved by an answer, against conversations that were left alone at random."""

    name: str
    answers: int
    held_out: int
    saved_tokens: Interval | None
    """Mean of an answer that was left alone, less the mean of the others; the answers of one
    conversation count as independent."""
    saved_share: float | None
    saved_s: Interval | None


class Holdout(Value):
    """Would-be hits that were sent upstream at random: what a hit saves, measured.

    ``by_hits`` sums each hit's saving against its original call; ``by_holdout`` is the number of
    hits times how much longer held-out requests took than hits did. ``difference_s`` is the first
    minus the second, per hit. They ``disagree`` when its interval excludes zero.
    """

    hits: int
    held_out: int
    by_hits_s: Interval | None
    by_holdout_s: Interval | None
    by_hits_usd: Interval | None
    by_holdout_usd: Interval | None
    difference_s: Interval | None
    disagree: bool | None


class Point(Value):
    """A point of a distribution: this share of requests took at most so long."""

    seconds: float
    share: float


class Span(Value):
    """Requests by outcome that arrived within one bar of the timeline."""

    start: float
    outcomes: dict[str, int]


class Report(Value):
    """Everything that ``headstart report`` shows. Times are Unix seconds."""

    first: float | None
    last: float | None
    overall: Group
    models: tuple[Group, ...]
    endpoints: tuple[Group, ...]
    reasons: dict[str, int]
    """Why misses and bypasses were none: reason to count, most frequent first."""
    holdout: Holdout | None
    hit_curve: tuple[Point, ...]
    """Distribution of the time to first token of hits."""
    miss_curve: tuple[Point, ...]
    timeline: tuple[Span, ...]
    timeline_step_s: float
    calls: tuple[Calls, ...]
    extra: Extra | None
    reshaped: tuple[Reshaped, ...]
    trials: tuple[Trial, ...]
