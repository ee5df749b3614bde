"""The state that the admin API shows: entries of the cache, upstreams and recent requests.

With several workers, the figures of all workers are shown as one. For example, ``GET upstreams``
takes these steps:

1. ``gather_answers`` sends the question ``UPSTREAMS`` to all workers, by way of the parent process.
2. Each worker answers with its ``own_figures``, as bytes.
3. ``merge_upstreams`` makes one answer of these: an upstream with 2 calls in flight in one worker
   and 3 in the other has 5.

The parts of this file: levels, entries of the cache, upstreams, recent requests, the questions to
workers, and the functions that merge their answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, defaultdict
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from anyio import to_thread
from litestar import delete, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, ValidationException
from litestar.params import FromPath, QueryParameter, SkipValidation
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from headstart.attempts import FAILURES
from headstart.errors import HeadstartError, StoreError
from headstart.middleware.admin_front import AdminState, EngineParts, WorkerAnswers
from headstart.middleware.live import LiveFilter, key_of
from headstart.middleware.metrics import Hedging, Levels
from headstart.policies.routing.measures import Measures, UpstreamModel
from headstart.types import Delete, Entry, EntryFilter, Frozen, LimitUse, RawResponse, Text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from prometheus_client.samples import Sample

    from headstart.middleware.learning.hit_decisions import Explanation, HitDecider
    from headstart.middleware.upstreams.accounting import UpstreamState
    from headstart.observe import Served


# --- levels: the numbers that rise and fall -------------------------------------------------------


def read_hedges(engine: EngineParts) -> tuple[Hedging, ...]:
    """Return the shares of hedged calls, by route and strategy."""
    if engine.states is None:
        return ()
    return tuple(
        Hedging(
            route=route,
            strategy=strategy,
            extra_calls=budget.calls_used,
            extra_calls_allowed=budget.calls,
            extra_cost=budget.usd_used,
            extra_cost_allowed=budget.usd,
        )
        for (route, strategy), budget in engine.states.hedges.items()
    )


async def read_limits(engine: EngineParts) -> tuple[LimitUse, ...]:
    """Return the used part of the limits of client keys; nothing if the store fails."""
    if engine.ledger is not None:
        with contextlib.suppress(StoreError):
            return tuple(await engine.ledger.uses())
    return ()


async def read_levels(engine: EngineParts) -> Levels:
    """Return the present levels of this process. If the store fails, its numbers are missing."""
    entries = size = partitions = None
    with contextlib.suppress(StoreError):
        if engine.cache is not None:
            kept = await engine.cache.stats()
            entries, size, partitions = kept.entries, kept.bytes, kept.partitions
        else:
            stored = await engine.store.stats()
            entries, size, partitions = stored.entries, stored.bytes, 0
    return Levels(
        entries=entries,
        bytes=size,
        partitions=partitions,
        in_flight=engine.concurrency.active + engine.relays.active,
        websockets=engine.sockets.active,
        encoder_queue=0 if engine.encoder is None else engine.encoder.queue_length,
        hedges=read_hedges(engine),
        limits=await read_limits(engine),
    )


# --- entries --------------------------------------------------------------------------------------

Admin: TypeAlias = NamedDependency[SkipValidation[AdminState]]
Engine: TypeAlias = NamedDependency[SkipValidation[EngineParts]]
Word = partial(QueryParameter, min_length=1)
Hex = partial(QueryParameter, pattern="^[0-9a-f]{8,64}$")
Texts = Annotated[bool, QueryParameter(description="Show question and answer too.")]
Limit = Annotated[int, QueryParameter(ge=1, le=1000)]

AT_ONCE = 256
"""Ids in one deletion."""


class EntryView(Frozen, omit_defaults=False):
    """An entry as the API shows it. ``bytes`` counts it encoded, without its vector."""

    id: str
    created: float
    age_s: float
    expires: float | None
    scope: str
    """The scope whose callers share the entry; ``explain`` shows the same name for requests."""
    partition: str
    model: str
    upstream: str
    tags: tuple[str, ...]
    transforms: tuple[str, ...]
    bytes: int
    prompt_tokens: int
    completion_tokens: int
    question: str | msgspec.UnsetType | None = msgspec.UNSET
    """Only with ``texts``, as ``answer``."""
    answer: str | msgspec.UnsetType = msgspec.UNSET


class EntryList(Frozen, omit_defaults=False):
    """The oldest matching entries. ``more`` tells whether there are others."""

    entries: list[EntryView]
    more: bool


class Deleted(Frozen):
    """The number of entries that were deleted."""

    deleted: int


def choose_entries(
    *,
    admin: Admin,
    tag: Annotated[str | None, Word(description="Only entries with this tag.")] = None,
    model: Annotated[str | None, Word(description="Only entries of this model.")] = None,
    partition: Annotated[
        str | None, Hex(description="The first hex digits of a partition.")
    ] = None,
    caller: Annotated[
        str | None, Hex(name="scope", description="The first hex digits of a scope.")
    ] = None,
    prefix: Annotated[str | None, Word(description="The first characters of the question.")] = None,
    older_s: Annotated[
        float | None,
        QueryParameter(description="Only entries older than this number of seconds.", ge=0),
    ] = None,
) -> EntryFilter:
    """Return the filters of a request for entries."""
    return EntryFilter(
        tag=tag,
        model=model,
        scope=caller,
        partition=partition,
        prefix=prefix,
        before=None if older_s is None else admin.clock() - older_s,
    )


Chosen: TypeAlias = NamedDependency[SkipValidation[EntryFilter]]


@get("/cache")
async def list_entries(
    *,
    admin: Admin,
    engine: Engine,
    chosen: Chosen,
    limit: Limit = 100,
    texts: Texts = False,
) -> EntryList:
    """List entries, oldest first."""
    now = admin.clock()
    views: list[EntryView] = []
    async for entry in _matching(engine, chosen):
        if len(views) == limit:
            return EntryList(entries=views, more=True)
        views.append(view_entry(entry, now, texts=texts))
    return EntryList(entries=views, more=False)


@get("/cache/{id:str}")
async def inspect_entry(
    id: FromPath[str], admin: Admin, engine: Engine, *, texts: Texts = False
) -> EntryView:
    """Show one entry."""
    return view_entry(await _load(engine, id), admin.clock(), texts=texts)


@delete("/cache/{id:str}", status_code=200)
async def delete_entry(id: FromPath[str], engine: Engine) -> Deleted:
    """Delete one entry, here and in the store."""
    entry = await _load(engine, id)
    await _invalidate(engine, [entry.id])
    return Deleted(deleted=1)


@delete("/cache", status_code=200)
async def delete_entries(engine: Engine, chosen: Chosen) -> Deleted:
    """Delete the entries that match all given filters."""
    if chosen.is_empty:
        raise ValidationException(
            "say which entries: ?tag=…, ?model=…, ?scope=…, ?partition=…, ?prefix=… or ?older_s=…"
        )
    ids = [entry.id async for entry in _matching(engine, chosen)]
    for start in range(0, len(ids), AT_ONCE):
        await _invalidate(engine, ids[start : start + AT_ONCE])
    return Deleted(deleted=len(ids))


ENTRY_HANDLERS: tuple[Any, ...] = (list_entries, inspect_entry, delete_entry, delete_entries)


def view_entry(entry: Entry, now: float, *, texts: bool) -> EntryView:
    """Return the view of an entry; question and answer only with ``texts``."""
    view = EntryView(
        id=entry.id,
        created=entry.created,
        age_s=now - entry.created,
        expires=entry.expires,
        scope=entry.key.scope,
        partition=entry.key.partition,
        model=entry.origin.model,
        upstream=entry.origin.upstream,
        tags=entry.tags,
        transforms=entry.transforms,
        bytes=len(msgspec.msgpack.encode(entry)),
        prompt_tokens=entry.origin.prompt_tokens,
        completion_tokens=entry.origin.completion_tokens,
    )
    if not texts:
        return view
    return replace(view, question=entry.key.query, answer=shown_answer(entry))


def shown_answer(entry: Entry) -> str:
    """Return the texts of an answer, or the whole body of one that is no chat, for a person."""
    answer = entry.answer
    if isinstance(answer, RawResponse):
        return answer.body.decode("utf-8", "replace")
    parts = (part for choice in answer.choices for part in choice.parts)
    return "\n".join(part.text for part in parts if isinstance(part, Text))


async def _matching(engine: EngineParts, chosen: EntryFilter) -> AsyncIterator[Entry]:
    async for entries in engine.store.entries():
        for entry in entries:
            if chosen.fits(entry):
                yield entry


async def _load(engine: EngineParts, id: str) -> Entry:
    (entry,) = await engine.store.load([id])
    if entry is None:
        raise NotFoundException("no entry has this id")
    return entry


async def _invalidate(engine: EngineParts, ids: Sequence[str]) -> None:
    if engine.cache is not None:
        await engine.cache.invalidate(ids)
    else:
        await engine.store.append([Delete(ids=tuple(ids))])


# --- upstreams ------------------------------------------------------------------------------------

TYPICAL_TOKENS = 500
"""Length of the typical prompt for which times to first token are shown."""


class UpstreamStatus(Frozen, omit_defaults=False):
    """One model of an upstream, under one key. Seconds; None: not known yet."""

    upstream: str
    model: str
    key: str
    """The place of the key among the upstream's own ones, or 8 hex digits of the hash of a caller's
    key. Empty: no key."""
    ready: bool
    ready_in_s: float
    """Time until its breaker closes or its rate limit is refilled."""
    degraded: bool
    in_flight: int
    samples: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    tokens_per_s: float | None
    first_token_limit_s: float
    """Longest wait for first content, unless ``first_token_s`` is set."""
    stall_limit_s: float


class UpstreamsView(Frozen, omit_defaults=False):
    """The upstreams, and the budgets of hedges."""

    upstreams: list[UpstreamStatus]
    hedges: tuple[Hedging, ...] = ()


def upstream_states(engine: EngineParts) -> list[UpstreamStatus]:
    """Return the upstreams that were called, by name and model."""
    states = engine.states
    if states is None:
        return []
    now = asyncio.get_running_loop().time()
    found = [
        _status(UpstreamModel(upstream, model), key[:8], state, states.measures, now)
        for (upstream, model, key), state in states.items()
    ]
    found.sort(key=lambda each: (each.upstream, each.model, each.key))
    return found


def _status(
    model: UpstreamModel, key: str, state: UpstreamState, measures: Measures, now: float
) -> UpstreamStatus:
    wait_s = max(state.breaker.avoided_for_s(now), state.limits.ready_in_s(0, now))
    p50_s, p95_s, p99_s = (
        measures.ttft_s(model, TYPICAL_TOKENS, share, now) for share in (0.5, 0.95, 0.99)
    )
    return UpstreamStatus(
        upstream=model.upstream,
        model=model.model,
        key=key,
        ready=wait_s <= 0.0,
        ready_in_s=wait_s,
        degraded=state.breaker.degraded(now),
        in_flight=measures.in_flight(model),
        samples=measures.first_token(model, TYPICAL_TOKENS, now).samples,
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s,
        tokens_per_s=measures.tokens_per_s(model),
        first_token_limit_s=measures.first_token_limit_s(model, TYPICAL_TOKENS, now),
        stall_limit_s=measures.stall_limits_s(model)[0],
    )


# --- recent requests ------------------------------------------------------------------------------

MOST_ROWS = 100
"""Number of requests that the live page lists."""


class RequestRow(Frozen, omit_defaults=False):
    """A recent request. Times are Unix seconds and seconds; dollars."""

    id: str
    at: float
    endpoint: str
    outcome: str
    detail: str | None
    """The reason of a miss, or the veto."""
    error: str | None
    status: int
    caller: str
    route: str
    tags: tuple[str, ...]
    model: str
    upstream: str
    attempts: int
    ttft_s: float | None
    total_s: float
    cost_usd: float | None


class CallCount(Frozen, omit_defaults=False):
    """The calls to one model of an upstream among the last requests."""

    upstream: str
    model: str
    calls: int
    failed: int
    cost_usd: float = 0.0
    """Calls without a known price count as nothing."""


class RecentCalls(Frozen, omit_defaults=False):
    """The last requests, the newest first, and the state of the upstreams."""

    requests: list[RequestRow]
    calls: list[CallCount]
    upstreams: list[UpstreamStatus]


def read_recent(admin: AdminState, engine: EngineParts, wanted: LiveFilter) -> RecentCalls:
    """Return the last ``wanted`` requests of this process, and the calls of all its requests."""
    counts = [
        CallCount(
            upstream=each.upstream,
            model=each.model,
            calls=1,
            failed=int(each.outcome in FAILURES),
            cost_usd=each.cost_usd or 0.0,
        )
        for row in admin.recent.newest()
        for each in row.attempts
    ]
    rows = (row for row in admin.recent.newest() if wanted.fits(key_of(row)))
    return RecentCalls(
        requests=[_row(row) for row in islice(rows, MOST_ROWS)],
        calls=sum_counts(counts),
        upstreams=upstream_states(engine),
    )


def sum_counts(counts: Iterable[CallCount]) -> list[CallCount]:
    """Return one count for each model of an upstream, by their names."""
    sums: dict[tuple[str, str], CallCount] = {}
    for each in counts:
        place = each.upstream, each.model
        known = sums.get(place) or replace(each, calls=0, failed=0, cost_usd=0.0)
        sums[place] = replace(
            known,
            calls=known.calls + each.calls,
            failed=known.failed + each.failed,
            cost_usd=known.cost_usd + each.cost_usd,
        )
    return [sums[place] for place in sorted(sums)]


def _row(row: Served) -> RequestRow:
    """Return a row of the books as the page shows it, with the number of its attempts."""
    shown = {name: getattr(row, name) for name in RequestRow.__struct_fields__}
    return RequestRow(**{**shown, "attempts": len(row.attempts)})


# --- the questions to workers ---------------------------------------------------------------------

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


class WorkerCounts(Frozen, omit_defaults=False):
    """The requests that one worker has counted by outcome, and its present levels."""

    outcomes: dict[str, int]
    now: Levels
    started: float
    """When the worker started, on the monotonic clock, which all workers share."""


async def own_figures(admin: AdminState, engine: EngineParts, what: str) -> bytes:
    """Return this process's answer to a question; b"" if it does not know the request of one."""
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


# --- the answers of several workers as one --------------------------------------------------------

_SAME_STORE = ("headstart_entries", "headstart_entries_bytes", "headstart_partitions")
"""Gauges of things that all workers share. The largest value is the newest."""


class _Merged(Collector):
    """The metrics of several workers, each in Prometheus's text format, as one."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        """The metrics by name, without samples. The library calls a metric a family of samples."""
        self._samples: defaultdict[str, dict[tuple[object, ...], Sample]] = defaultdict(dict)
        """For each family, its samples by name and labels."""

    def add(self, exposed: bytes, *, counters_only: bool) -> None:
        """Add the exposition of one worker; of an ended worker only the values that never fall."""
        for family in text_string_to_metric_families(exposed.decode()):
            if counters_only and family.type == "gauge":
                continue
            self._families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            rule, samples = _rule(family), self._samples[family.name]
            for sample in family.samples:
                key = (sample.name, *sorted(sample.labels.items()))
                known = samples.get(key)
                both = sample.value if known is None else _merge(rule, known.value, sample.value)
                samples[key] = sample._replace(value=both)

    def collect(self) -> Iterable[Metric]:
        """Return the merged families."""
        for name, family in self._families.items():
            family.samples = list(self._samples[name].values())
            yield family


def _rule(family: Metric) -> Callable[[Iterable[float]], float]:
    """Return the function that makes one value of those of several workers."""
    name = family.name
    if name.endswith(("_created", "_start_time_seconds", "_max_fds")):
        return min
    return max if name in _SAME_STORE or name.endswith("_ratio") else sum


def _merge(rule: Callable[[Iterable[float]], float], one: float, other: float) -> float:
    """Apply a rule to two values. NaN stands for a value that a worker does not know."""
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
    """Return the present levels of all workers.

    Of what all workers share, such as the entries, the largest known value counts, or the longest
    list. The other levels are summed up.
    """

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
    for each in chain.from_iterable(view.upstreams for view in views):
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
