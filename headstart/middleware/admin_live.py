"""The live page of the admin API: what was saved, and why each request was a hit or a miss."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Response, get
from litestar.exceptions import TooManyRequestsException
from litestar.params import QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from headstart.attempts import FAILURES
from headstart.errors import StoreError
from headstart.middleware.admin_learning import page_response
from headstart.middleware.admin_state import (
    Admin,
    Engine,
    UpstreamStatus,
    read_limits,
    upstream_states,
)
from headstart.middleware.client_ledger import LimitUse  # noqa: TC001 - msgspec reads it
from headstart.middleware.live import Filter, LiveTotals, LiveView, key_of
from headstart.observe import logger
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from headstart.middleware.admin_front import AdminState, EngineParts
    from headstart.observe import Served

MOST_ROWS = 100
MOST_PAGES = 16
"""Number of pages that may be open at the same time: each gets a view every second."""
EVERY_S = 1.0
ALIVE_S = 15.0
"""A page hears at least that often from the server, so that it notices a broken connection."""
STREAM_S = 60.0
"""Longest time of a stream of events; then the page opens the next one. So a reload of the
configuration does not wait for pages that are open."""
REREAD_S = 30.0
"""With several workers, the books are read again after this time: each worker sees only its own
requests."""

Window = Annotated[float, QueryParameter(description="Seconds back from now.", ge=60, le=86_400)]
Only = Annotated[str | None, QueryParameter(description="Only requests with this value.")]


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
    """The calls to one model of an upstream among the last requests of this process."""

    upstream: str
    model: str
    calls: int
    failed: int


class Safety(Frozen, omit_defaults=False):
    """What is known of wrong hits, over the learning domains in memory."""

    max_error: float
    audits: int
    wrong: int
    domains: int
    alarms: int
    """Domains that serve no rewordings now, because too many of their hits were wrong."""
    worst_bound: float | None
    """The highest upper bound of the share of wrong hits in a domain."""


class Overview(Frozen, omit_defaults=False):
    """All that the live page shows."""

    view: LiveView
    upstreams: list[UpstreamStatus]
    calls: list[CallCount]
    safety: Safety | None
    """None: nothing is matched by what was learned."""
    limits: list[LimitUse]
    """What callers have used of the limits of their keys."""
    requests: list[RequestRow]
    """The last ones, the newest first."""


@get("/", opt={"public": True}, include_in_schema=False, sync_to_thread=True)
def live_page() -> Response[str]:
    """Return the page. It holds no data: it asks for them with the admin token."""
    return page_response("live.html")


@get("/live")
async def live(
    admin: Admin,
    engine: Engine,
    *,
    window_s: Window = 3600.0,
    caller: Only = None,
    route: Only = None,
    model: Only = None,
    endpoint: Only = None,
    tag: Only = None,
) -> Overview:
    """Show the savings, the upstreams and the last requests of a window of time."""
    totals = await _totals(admin, engine)
    wanted = Filter(caller, route, model, endpoint, tag)
    view = totals.view(window_s, wanted)
    return _overview(admin, engine, view, wanted, await read_limits(engine))


@get("/live/events")
async def live_events(
    admin: Admin,
    engine: Engine,
    *,
    window_s: Window = 3600.0,
    caller: Only = None,
    route: Only = None,
    model: Only = None,
    endpoint: Only = None,
    tag: Only = None,
) -> ServerSentEvent:
    """Send the same as ``live`` as server-sent events: now, and each second if it has changed."""
    if admin.pages.open >= MOST_PAGES:
        raise TooManyRequestsException(f"{MOST_PAGES} live pages are open already")
    await _totals(admin, engine)
    wanted = Filter(caller, route, model, endpoint, tag)
    return ServerSentEvent(_events(admin, engine, window_s, wanted))


LIVE_HANDLERS: tuple[Any, ...] = (live_page, live, live_events)


async def _totals(admin: AdminState, engine: EngineParts) -> LiveTotals:
    """Return the totals. The first call begins them, with the store's books."""
    pages = admin.pages
    async with pages.starting:
        alone = admin.gather is None
        old = pages.totals is not None and not alone and admin.clock() - pages.read_at > REREAD_S
        if pages.totals is None or old:
            totals = LiveTotals(admin.clock)
            if alone:
                admin.observers.add(totals)
            try:
                await totals.load(engine.store, admin.recent.newest())
            except StoreError as error:
                logger.warning("the live page begins without the books of the store: %s", error)
            pages.totals, pages.read_at = totals, admin.clock()
        return pages.totals


async def _events(
    admin: AdminState, engine: EngineParts, window_s: float, wanted: Filter
) -> AsyncIterator[ServerSentEventMessage]:
    pages, loop = admin.pages, asyncio.get_running_loop()
    pages.open += 1
    try:
        sent, spoke, until = None, 0.0, loop.time() + STREAM_S
        while not admin.draining() and loop.time() < until:
            totals = await _totals(admin, engine)
            now = (id(totals), totals.version, admin.clock() // 60)
            if now != sent or loop.time() - spoke > ALIVE_S:
                sent, spoke = now, loop.time()
                limits, view = await read_limits(engine), totals.view(window_s, wanted)
                overview = _overview(admin, engine, view, wanted, limits)
                yield ServerSentEventMessage(data=msgspec.json.encode(overview))
            await asyncio.sleep(EVERY_S)
    finally:
        pages.open -= 1


def _overview(
    admin: AdminState,
    engine: EngineParts,
    view: LiveView,
    wanted: Filter,
    limits: tuple[LimitUse, ...],
) -> Overview:
    rows = (row for row in admin.recent.newest() if wanted.fits(key_of(row)))
    return Overview(
        view=view,
        upstreams=upstream_states(engine),
        calls=_calls(admin.recent.newest()),
        safety=_safety(engine),
        limits=[each for each in limits if wanted.caller in (None, each.caller)],
        requests=[_row(row) for row, _ in zip(rows, range(MOST_ROWS), strict=False)],
    )


def _calls(rows: Iterable[Served]) -> list[CallCount]:
    calls, failed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in rows:
        for each in row.attempts:
            calls[each.upstream, each.model] += 1
            failed[each.upstream, each.model] += each.outcome in FAILURES
    return [
        CallCount(upstream=upstream, model=model, calls=number, failed=failed[upstream, model])
        for (upstream, model), number in sorted(calls.items())
    ]


def _row(row: Served) -> RequestRow:
    return RequestRow(
        id=row.id,
        at=row.at,
        endpoint=row.endpoint,
        outcome=row.outcome.value,
        detail=row.veto or row.reason,
        error=row.error,
        status=row.status,
        caller=row.caller,
        route=row.route,
        tags=row.tags,
        model=row.model,
        upstream=row.upstream,
        attempts=len(row.attempts),
        ttft_s=row.ttft_s,
        total_s=row.total_s,
        cost_usd=row.cost_usd,
    )


def _safety(engine: EngineParts) -> Safety | None:
    if engine.oversight is None:
        return None
    domains = engine.oversight.learner.domains
    found = [domains.get(name).status() for name in domains.names()]
    bounds = [each.bound for each in found if each.bound is not None]
    return Safety(
        max_error=engine.oversight.promise.max_error,
        audits=sum(each.audits for each in found),
        wrong=sum(each.audits_wrong for each in found),
        domains=len(found),
        alarms=sum(each.alarm for each in found),
        worst_bound=max(bounds, default=None),
    )
