"""The state that the admin API shows, and its handlers for cache entries and upstreams."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from litestar import delete, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, ValidationException
from litestar.params import FromPath, QueryParameter, SkipValidation

from headstart.attempts import FAILURES
from headstart.errors import StoreError
from headstart.middleware.admin_front import AdminState, EngineParts
from headstart.middleware.live import LiveFilter, key_of
from headstart.middleware.metrics import Hedging, Levels
from headstart.policies.routing.measures import Measures, UpstreamModel
from headstart.types import Delete, Entry, EntryFilter, Frozen, LimitUse, RawResponse, Text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from headstart.middleware.upstreams.accounting import UpstreamState
    from headstart.observe import Served


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
    """Return the present levels. If the store fails, only its numbers are missing."""
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
    return msgspec.structs.replace(view, question=entry.key.query, answer=shown_answer(entry))


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
        other = sums.get(place)
        sums[place] = (
            each
            if other is None
            else msgspec.structs.replace(
                other,
                calls=other.calls + each.calls,
                failed=other.failed + each.failed,
                cost_usd=other.cost_usd + each.cost_usd,
            )
        )
    return [sums[place] for place in sorted(sums)]


def _row(row: Served) -> RequestRow:
    shown = {name: getattr(row, name) for name in RequestRow.__struct_fields__}
    return RequestRow(**{**shown, "attempts": len(row.attempts)})
