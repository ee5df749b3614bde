"""The live page of the admin API: what was saved, and why each request was a hit or a miss."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.exceptions import TooManyRequestsException
from litestar.params import QueryParameter, SkipValidation
from litestar.response import ServerSentEvent, ServerSentEventMessage

from headstart.errors import StoreError
from headstart.middleware.admin_learning import page_response, page_text
from headstart.middleware.admin_state import (
    Admin,
    CallCount,
    Engine,
    RecentCalls,
    RequestRow,
    UpstreamStatus,
    read_limits,
)
from headstart.middleware.live import Filter, LiveTotals, LiveView
from headstart.middleware.worker_figures import recent_calls
from headstart.observe import logger
from headstart.types import (
    Frozen,
    LimitUse,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.middleware.admin_front import AdminState, EngineParts

MOST_PAGES = 16
"""Number of pages that may be open at the same time: each gets a view every second."""
EVERY_S = 1.0
ALIVE_S = 15.0
"""A page hears at least that often from the server, so that it notices a broken connection."""
REREAD_S = 30.0
"""With several workers, the books are read again after this time: each worker sees only its own
requests."""

Only = Annotated[str | None, QueryParameter(description="Only requests with this value.")]


class LiveChoice(NamedTuple):
    """What a page shows: the last ``window_s`` seconds, and the requests that are ``wanted``."""

    window_s: float
    wanted: Filter


def choose_requests(
    *,
    window_s: Annotated[
        float, QueryParameter(description="Seconds back from now.", ge=60, le=86_400)
    ] = 3600.0,
    caller: Only = None,
    route: Only = None,
    model: Only = None,
    endpoint: Only = None,
    tag: Only = None,
) -> LiveChoice:
    """Return what a request for the live page asks for."""
    return LiveChoice(window_s, Filter(caller, route, model, endpoint, tag))


Asked: TypeAlias = NamedDependency[SkipValidation[LiveChoice]]


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
    wrapped: bool
    """An app of this process answers, and no provider."""
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
async def live(admin: Admin, engine: Engine, asked: Asked) -> Overview:
    """Show the savings, the upstreams and the last requests of a window of time."""
    totals = await _totals(admin, engine)
    return await _overview(engine, totals, await recent_calls(admin, engine, asked.wanted), asked)


@get("/live/events")
async def live_events(admin: Admin, engine: Engine, asked: Asked) -> ServerSentEvent:
    """Send the same as ``live`` as server-sent events: now, and each second if it has changed."""
    if admin.pages.open >= MOST_PAGES:
        raise TooManyRequestsException(f"{MOST_PAGES} live pages are open already")
    await _totals(admin, engine)
    return ServerSentEvent(_events(admin, engine, asked))


@get("/live.js", opt={"public": True}, include_in_schema=False, sync_to_thread=True)
def live_drafts_script() -> Response[str]:
    """Return the script for browsers that sends live drafts. It holds no data."""
    return Response(
        page_text("live_drafts.js"),
        media_type="text/javascript; charset=utf-8",
        headers={"cache-control": "no-cache", "x-content-type-options": "nosniff"},
    )


LIVE_HANDLERS: tuple[Any, ...] = (live_page, live, live_events, live_drafts_script)


async def _totals(admin: AdminState, engine: EngineParts) -> LiveTotals:
    """Return the totals. The first call begins them, with the store's books."""
    pages = admin.pages
    async with pages.starting:
        alone = admin.gather is None
        old = pages.totals is not None and not alone and admin.clock() - pages.read_at > REREAD_S
        if pages.totals is None or old:
            totals = LiveTotals(admin.clock, engine.machines)
            if alone:
                admin.observers.add(totals)
            try:
                await totals.load(engine.store, admin.recent.newest())
            except StoreError as error:
                logger.warning("the live page begins without the books of the store: %s", error)
            pages.totals, pages.read_at = totals, admin.clock()
        return pages.totals


async def _events(
    admin: AdminState, engine: EngineParts, asked: LiveChoice
) -> AsyncIterator[ServerSentEventMessage]:
    pages, loop = admin.pages, asyncio.get_running_loop()
    pages.open += 1
    try:
        sent, spoke, until = None, 0.0, loop.time() + pages.stream_s
        while not admin.draining() and loop.time() < until:
            totals = await _totals(admin, engine)
            recent = await recent_calls(admin, engine, asked.wanted)
            seen = (recent.requests, recent.calls)
            now = (id(totals), totals.version, admin.clock() // 60, seen)
            if now != sent or loop.time() - spoke > ALIVE_S:
                sent, spoke = now, loop.time()
                overview = await _overview(engine, totals, recent, asked)
                yield ServerSentEventMessage(data=msgspec.json.encode(overview))
            await asyncio.sleep(EVERY_S)
    finally:
        pages.open -= 1


async def _overview(
    engine: EngineParts, totals: LiveTotals, recent: RecentCalls, asked: LiveChoice
) -> Overview:
    limits = await read_limits(engine)
    return Overview(
        view=totals.view(asked.window_s, asked.wanted),
        wrapped=engine.conditions is None,
        upstreams=recent.upstreams,
        calls=recent.calls,
        safety=_safety(engine),
        limits=[each for each in limits if asked.wanted.caller in (None, each.caller)],
        requests=recent.requests,
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
