"""Figures of several workers as one: their metrics, their counts, and their view of upstreams."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec
from anyio import to_thread
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from headstart.errors import HeadstartError
from headstart.middleware.admin_front import AdminState, EngineParts, WorkerAnswers
from headstart.middleware.admin_state import (
    MOST_ROWS,
    RecentCalls,
    UpstreamStatus,
    UpstreamsView,
    read_hedges,
    read_levels,
    read_recent,
    sum_counts,
    upstream_states,
)
from headstart.middleware.live import LiveFilter
from headstart.middleware.metrics import Levels
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client.samples import Sample

    from headstart.middleware.learning.hit_decisions import Explanation, HitDecider

_SAME_STORE = ("headstart_entries", "headstart_entries_bytes", "headstart_partitions")
"""Gauges of things that all workers share. The largest value is the newest."""


class _Merged(Collector):
    """The sums over several expositions."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        self._samples: defaultdict[str, dict[tuple[object, ...], Sample]] = defaultdict(dict)

    def add(self, exposed: bytes, *, counters_only: bool) -> None:
        """Add the exposition of one worker; of an ended worker only the values that never fall."""
        for family in text_string_to_metric_families(exposed.decode()):
            if counters_only and family.type == "gauge":
                continue
            self._families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            merge, samples = _rule(family), self._samples[family.name]
            for sample in family.samples:
                key = (sample.name, *sorted(sample.labels.items()))
                known = samples.get(key)
                both = sample.value if known is None else _merge(merge, known.value, sample.value)
                samples[key] = sample._replace(value=both)

    def collect(self) -> Iterable[Metric]:
        """Return the merged families."""
        for name, family in self._families.items():
            family.samples = list(self._samples[name].values())
            yield family


def _rule(family: Metric) -> Callable[[Iterable[float]], float]:
    name = family.name
    if name.endswith(("_created", "_start_time_seconds", "_max_fds")):
        return min
    return max if name in _SAME_STORE or name.endswith("_ratio") else sum


def _merge(rule: Callable[[Iterable[float]], float], one: float, other: float) -> float:
    known = [value for value in (one, other) if not math.isnan(value)]
    return rule(known) if known else math.nan


def merge_metrics(live: Sequence[bytes], ended: Sequence[bytes] = ()) -> bytes:
    """Return the metrics of all workers in Prometheus's text format.

    The counters of workers that have ended still count, so that no sum ever falls.
    """
    merged = _Merged()
    for exposed in live:
        merged.add(exposed, counters_only=False)
    for exposed in ended:
        merged.add(exposed, counters_only=True)
    registry = CollectorRegistry()
    registry.register(merged)
    return generate_latest(registry)


def merge_levels(levels: Sequence[Levels]) -> Levels:
    """Return the present levels of all workers."""

    def largest(values: Iterable[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    return Levels(
        entries=largest(each.entries for each in levels),
        bytes=largest(each.bytes for each in levels),
        partitions=largest(each.partitions for each in levels),
        in_flight=sum(each.in_flight for each in levels),
        websockets=sum(each.websockets for each in levels),
        encoder_queue=sum(each.encoder_queue for each in levels),
        hedges=max((each.hedges for each in levels), key=len, default=()),
        limits=max((each.limits for each in levels), key=len, default=()),
    )


class WorkerCounts(Frozen, omit_defaults=False):
    """The requests that one worker has counted by outcome, and its present levels."""

    outcomes: dict[str, int]
    now: Levels
    started: float
    """When the worker started, on the monotonic clock, which all workers share."""


def merge_counts(live: Sequence[bytes], ended: Sequence[bytes] = ()) -> WorkerCounts:
    """Return the counts of all workers. A worker that has ended has no levels."""
    counts = [msgspec.json.decode(each, type=WorkerCounts) for each in (*live, *ended)]
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each.outcomes)
    return WorkerCounts(
        outcomes=dict(total),
        now=merge_levels([each.now for each in counts[: len(live)]]),
        started=min(each.started for each in counts),
    )


def merge_ended(what: str, ended: Sequence[bytes]) -> bytes:
    """Return the last metrics, or the last counts, of workers that have ended as one."""
    return merge_metrics((), ended) if what == METRICS else _encode(merge_counts((), ended))


def merge_upstreams(views: Sequence[UpstreamsView]) -> UpstreamsView:
    """Return each upstream once.

    Its calls in flight are those of all workers; its other figures are those of the worker that has
    measured most calls.
    """
    places: dict[tuple[str, str, str], UpstreamStatus] = {}
    for each in itertools.chain.from_iterable(view.upstreams for view in views):
        place = (each.upstream, each.model, each.key)
        known = places.get(place)
        places[place] = each if known is None else _joined(known, each)
    return UpstreamsView(
        upstreams=[status for _, status in sorted(places.items())],
        hedges=max((view.hedges for view in views), key=len, default=()),
    )


def _joined(one: UpstreamStatus, other: UpstreamStatus) -> UpstreamStatus:
    larger = max(one, other, key=lambda status: status.samples)
    return replace(larger, in_flight=one.in_flight + other.in_flight)


def merge_recent(found: Sequence[RecentCalls]) -> RecentCalls:
    """Return the last requests and the calls of all workers."""
    rows = sorted(
        (row for each in found for row in each.requests), key=lambda row: row.at, reverse=True
    )
    return RecentCalls(
        requests=rows[:MOST_ROWS],
        calls=sum_counts(count for each in found for count in each.calls),
        upstreams=merge_upstreams(
            [UpstreamsView(upstreams=each.upstreams) for each in found]
        ).upstreams,
    )


_encode = msgspec.json.encode
METRICS, COUNTS, UPSTREAMS = "metrics", "counts", "upstreams"
EXPLAIN, RECENT = "explain/", "recent/"
"""The questions between workers. ``EXPLAIN`` is followed by the id of a request, ``RECENT`` by a
filter as JSON."""


async def gather_answers(admin: AdminState, engine: EngineParts, what: str) -> WorkerAnswers:
    """Return the answers of all workers, or of this process where there are no others."""
    if admin.gather is not None:
        with contextlib.suppress(HeadstartError):  # raised if the parent process has just ended
            found = await admin.gather(what)
            if found.live:
                return found
    return WorkerAnswers(live=[await own_figures(admin, engine, what)])


async def recent_calls(admin: AdminState, engine: EngineParts, wanted: LiveFilter) -> RecentCalls:
    """Return the last ``wanted`` requests of all workers, and the calls of all their requests."""
    if admin.gather is None:
        return read_recent(admin, engine, wanted)
    found = await gather_answers(admin, engine, RECENT + _encode(wanted).decode())
    return merge_recent([msgspec.json.decode(each, type=RecentCalls) for each in found.live])


async def own_figures(admin: AdminState, engine: EngineParts, what: str) -> bytes:
    """Return this process's answer."""
    if what == METRICS:
        admin.metrics.settle()
        return await to_thread.run_sync(admin.metrics.expose, await read_levels(engine))
    if what == COUNTS:
        outcomes = admin.metrics.requests_by_outcome()
        now = await read_levels(engine)
        return _encode(WorkerCounts(outcomes=outcomes, now=now, started=admin.started))
    if what == UPSTREAMS:
        view = UpstreamsView(upstreams=upstream_states(engine), hedges=read_hedges(engine))
        return _encode(view)
    if what.startswith(RECENT):
        wanted = msgspec.json.decode(what.removeprefix(RECENT), type=LiveFilter)
        return _encode(read_recent(admin, engine, wanted))
    id = what.removeprefix(EXPLAIN)
    row = admin.recent.find(id)
    if row is None:
        return b""
    explained = msgspec.structs.asdict(row)
    if engine.hit_decider is not None:
        explained["verdict"] = await _verdict(engine.hit_decider, id)
    return _encode(explained)


async def _verdict(hit_decider: HitDecider, id: str) -> Explanation | None:
    sample = hit_decider.learner.recall(id)
    if sample is None:
        return None
    await hit_decider.learner.domains.load(sample.pair.domain)
    return hit_decider.explain(id)
