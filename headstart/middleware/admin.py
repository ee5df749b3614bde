"""The admin API under ``/_headstart/``: health, metrics, the cache, learning, the live page.

``docs/headers.md`` lists the paths. Only two of them show prompts and answers: the pairs of the
review page, and the entries of the cache with ``?texts=1`` (``admin_state.py``).

The parts of this file:

1. The app (``admin_app``), with its check of callers (``_guard``) and its errors.
2. Health, metrics, settings and upstreams.
3. The pages for people, which are HTML.
4. Learning: domains, the error bounds from audits, feedback, explanations and the review page.
5. The live page, which shows the savings, and why each request was a hit or a miss.

For example, ``GET /_headstart/health`` answers ``{"status": "alive"}``. If there are several
workers, ``gather_answers`` asks all of them, and their figures are shown as one.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from base64 import b64encode
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec
from anyio import to_thread
from litestar import Litestar, Request, Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.exceptions import (
    HTTPException,
    NotAuthorizedException,
    NotFoundException,
    PermissionDeniedException,
    ServiceUnavailableException,
    TooManyRequestsException,
    ValidationException,
)
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import FromPath, JSONBody, QueryParameter, SkipValidation
from litestar.response import ServerSentEvent, ServerSentEventMessage
from prometheus_client import CONTENT_TYPE_LATEST

from headstart.decisions import Outcome
from headstart.errors import HeadstartError, StoreError
from headstart.middleware.admin_front import AdminState, EngineParts, Health, Readiness, readiness
from headstart.middleware.admin_state import (
    COUNTS,
    ENTRY_HANDLERS,
    EXPLAIN,
    METRICS,
    UPSTREAMS,
    Admin,
    CallCount,
    Engine,
    RecentCalls,
    RequestRow,
    UpstreamStatus,
    UpstreamsView,
    choose_entries,
    gather_answers,
    merge_counts,
    merge_metrics,
    merge_upstreams,
    read_limits,
    recent_calls,
    shown_answer,
)
from headstart.middleware.learning.certificates import AuditReport, audit_report
from headstart.middleware.learning.hit_decisions import DoubtfulPair, HitDecider, most_doubtful
from headstart.middleware.live import LiveFilter, LiveTotals, LiveView
from headstart.middleware.metrics import Levels  # noqa: TC001 - msgspec reads it
from headstart.observe import logger
from headstart.policies.callers import OriginRules, proxy_sign
from headstart.policies.learned_rule.domain import DomainStatus  # noqa: TC001 - msgspec reads it
from headstart.types import Entry, Frozen, LimitUse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler


# --- the app --------------------------------------------------------------------------------------

PREFIX = "/_headstart"


def admin_app(state: AdminState, *, token: bytes | None, rules: OriginRules | None) -> Litestar:
    """Return the admin app.

    With a ``token``, all paths except ``health`` and ``ready`` need it as a bearer token. Without a
    token, these paths are open to requests that ``rules`` allow; this is for a server that can be
    reached only from this machine. Without token and rules, they answer 403.
    """

    def engine() -> EngineParts:
        started = state.engine()
        if started is None:
            raise ServiceUnavailableException("the engine has not started")
        return started

    return Litestar(
        path=PREFIX,
        route_handlers=[
            health,
            ready,
            metrics,
            stats,
            config,
            upstreams,
            limits,
            reload,
            *ENTRY_HANDLERS,
            *LEARNING_HANDLERS,
            *LIVE_HANDLERS,
        ],
        guards=[_guard(token, rules)],
        dependencies={
            "admin": Provide(lambda: state, sync_to_thread=False),
            "engine": Provide(engine, sync_to_thread=False),
            "chosen": Provide(choose_entries, sync_to_thread=False),
            "asked": Provide(choose_requests, sync_to_thread=False),
        },
        exception_handlers={Exception: _answer_error},
        openapi_config=_openapi(),
        logging_config=None,  # the process's owner configures logging
    )


def _guard(
    token: bytes | None, rules: OriginRules | None
) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], None]:
    """Return the check for requests to all paths except ``health`` and ``ready``."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if handler.opt.get("public"):
            return
        if token is not None:
            _check_token(connection, token)
        elif rules is not None:
            _check_origin(connection, rules)
        else:
            raise PermissionDeniedException(
                "the admin API of a server that others can reach needs a token:"
                " set server.admin_token_env"
            )

    return guard


def _check_token(connection: ASGIConnection[Any, Any, Any, Any], token: bytes) -> None:
    """Refuse a request without the token. The comparison takes as long for each wrong token."""
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode("latin-1"), token)
    if scheme.lower() != "bearer" or not right:
        raise NotAuthorizedException(
            "send the admin token: Authorization: Bearer …", headers={"www-authenticate": "Bearer"}
        )


def _check_origin(connection: ASGIConnection[Any, Any, Any, Any], rules: OriginRules) -> None:
    """Refuse requests of other sites' pages, and requests through a proxy on this machine."""
    headers = tuple(connection.scope["headers"])
    through = proxy_sign(headers, connection.scope["http_version"])
    if through is not None:
        raise PermissionDeniedException(
            f"this request came through a proxy ({through}), so others than this machine may have "
            f"sent it: the admin API then needs a token, {rules.instead}"
        )
    if why := rules.refusal(headers):
        raise PermissionDeniedException(why)


_CODES = {413: "request_entity_too_large", 422: "unprocessable_entity"}
"""Error codes for the statuses whose names changed in Python 3.13, so that clients always see the
same code."""


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """Answer in JSON: ``{"error": {"message", "type", "code"}}``."""
    headers = None
    if isinstance(error, ValidationException):
        status, message = HTTPStatus.UNPROCESSABLE_ENTITY, _explain_invalid(error)
    elif isinstance(error, HTTPException):
        status, message, headers = HTTPStatus(error.status_code), error.detail, error.headers
    elif isinstance(error, StoreError):
        status, message = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    elif isinstance(error, RecursionError):
        status, message = HTTPStatus.BAD_REQUEST, "the body is nested too deeply"
    else:
        logger.error("an admin request failed: %s", request.url.path, exc_info=error)
        status, message = HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"
    code = _CODES.get(status) or status.phrase.lower().replace(" ", "_")
    body = {"error": {"message": message, "type": code, "code": code}}
    return Response(body, status_code=int(status), headers=headers, media_type="application/json")


def _explain_invalid(error: ValidationException) -> str:
    """Return the problems of a request, each with the name of its field."""
    problems = error.extra if isinstance(error.extra, list) else []
    return (
        "; ".join(f"{each.get('key')}: {each.get('message')}" for each in problems) or error.detail
    )


def _openapi() -> OpenAPIConfig:
    bearer = SecurityScheme(type="http", scheme="bearer")
    return OpenAPIConfig(
        title="Headstart admin API",
        version="1",
        path="/openapi",
        render_plugins=[JsonRenderPlugin(path="/")],
        components=Components(security_schemes={"bearer": bearer}),
        security=[{"bearer": []}],
    )


# --- health, metrics, settings and upstreams ------------------------------------------------------


class Stats(Frozen, omit_defaults=False):
    """Counts since the start of the server, and the present sizes of the cache."""

    uptime_s: float
    requests: int
    hits: dict[str, int]
    joined: int
    misses: int
    bypasses: int
    relayed: int
    """Requests of paths that are not cached; ``requests`` does not count them."""
    now: Levels


@get("/health", opt={"public": True})
async def health() -> Health:
    """Answer as long as the process lives."""
    return Health()


@get("/ready", opt={"public": True})
async def ready(admin: Admin) -> Response[Readiness]:
    """Answer 200 if requests can be served, and else 503. ``reasons`` lists the causes.

    ``status`` is ``starting`` or ``draining`` with 503, and ``ready`` or ``degraded`` with 200:
    without its store the server still answers, from memory and from the upstreams.
    """
    found = await readiness(admin)
    return Response(found, status_code=found.code)


@get("/metrics", media_type="text/plain")
async def metrics(admin: Admin, engine: Engine) -> Response[bytes]:
    """Show the metrics in Prometheus's text format."""
    found = await gather_answers(admin, engine, METRICS)
    text = found.live[0]
    if len(found.live) > 1 or found.ended:
        text = await to_thread.run_sync(merge_metrics, found.live, found.ended)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


@get("/stats")
async def stats(admin: Admin, engine: Engine) -> Stats:
    """Show the counts of requests, and the present sizes."""
    found = await gather_answers(admin, engine, COUNTS)
    counted = merge_counts(found.live, found.ended)
    count = counted.outcomes
    return Stats(
        uptime_s=time.monotonic() - counted.started,
        requests=sum(count.values()) - count[Outcome.RELAY],
        hits={kind: count[kind] for kind in (Outcome.EXACT, Outcome.SEMANTIC)},
        joined=count[Outcome.JOINED],
        misses=count[Outcome.MISS],
        bypasses=count[Outcome.BYPASS],
        relayed=count[Outcome.RELAY],
        now=counted.now,
    )


@get("/config")
async def config(admin: Admin) -> dict[str, Any]:
    """Show the settings in force, secrets masked."""
    return dict(admin.config)


@get("/upstreams")
async def upstreams(admin: Admin, engine: Engine) -> UpstreamsView:
    """Show the upstreams that were called: their state and their measurements."""
    found = await gather_answers(admin, engine, UPSTREAMS)
    return merge_upstreams([msgspec.json.decode(each, type=UpstreamsView) for each in found.live])


@get("/limits")
async def limits(engine: Engine) -> list[LimitUse]:
    """Show the used part of the limits of client keys, in all workers and nodes."""
    return [] if engine.ledger is None else await engine.ledger.uses()


@post("/reload", status_code=200)
async def reload(admin: Admin) -> dict[str, bool]:
    """Read the configuration again, for new requests. Answers 422 if the configuration is wrong."""
    if admin.reload is None:
        raise NotFoundException("this server does not reload: headstart serve did not start it")
    try:
        await admin.reload()
    except HeadstartError as error:
        raise ValidationException(str(error)) from error
    return {"reloaded": True}


# --- pages ----------------------------------------------------------------------------------------


def page_response(name: str) -> Response[str]:
    """Return a page that may run its own script, and load nothing from other hosts."""
    page = page_text(name)
    return Response(
        page,
        media_type="text/html",
        headers={
            "content-security-policy": _content_security_policy(page),
            "cache-control": "no-cache",
            # With no-referrer, browsers would send "Origin: null" with each label.
            "referrer-policy": "same-origin",
            "x-content-type-options": "nosniff",
        },
    )


@cache
def page_text(name: str) -> str:
    """Return a file of the pages."""
    return files("headstart.middleware.pages").joinpath(name).read_text(encoding="utf-8")


def _content_security_policy(page: str) -> str:
    """Return the Content-Security-Policy of a page.

    It allows the page's own style and script, by their hashes, and requests to this server.
    """
    return (
        f"default-src 'none'; style-src {_hash(page, 'style')}; script-src {_hash(page, 'script')};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )


def _hash(page: str, element: str) -> str:
    found = re.search(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    assert found is not None
    return f"'sha256-{b64encode(sha256(found[1].encode()).digest()).decode()}'"


# --- learning -------------------------------------------------------------------------------------

Since = Annotated[float, QueryParameter(description="Unix seconds.", ge=0)]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]

LOADED_AT_ONCE = 20
"""The number of pairs whose texts are read together."""


class Feedback(Frozen, forbid_unknown_fields=True):
    """A user's feedback on an answer: ``id`` is the request's ``x-headstart-request-id``.

    After "wrong", the entry of the hit answers no reworded prompt, and no entry answers the
    question of this request, until feedback on the same request is "correct". With ``pair_only``,
    only this pair of entry and question is blocked.
    """

    id: str
    correct: bool
    pair_only: bool = False


class Reviewed(Frozen, forbid_unknown_fields=True):
    """A person's judgement on a pair: whether one answer is right for both questions."""

    id: str
    entry: str
    same: bool


class LabelWritten(Frozen, omit_defaults=False):
    """A label was written."""

    labelled: bool = True


class ReviewSide(Frozen, omit_defaults=False):
    """One question and its answer."""

    question: str
    answer: str


class ReviewPair(Frozen, omit_defaults=False):
    """Two questions side by side.

    ``asked`` is the later one. The answer to ``stored`` was used for it, or might have been used.
    ``judged`` is the verdict of the agreement judge, null if the judge was unsure. ``score`` is the
    present score of the pair.
    """

    id: str
    entry: str
    similarity: float
    score: float
    veto: str | None
    served: bool
    judged: bool | None
    asked: ReviewSide
    stored: ReviewSide


class DomainView(Frozen, omit_defaults=False):
    """A learning domain in memory."""

    domain: str
    max_error: float
    error_of: str
    confidence: float
    audit_rate: float
    status: DomainStatus


@get("/learning")
async def learning(engine: Engine) -> list[DomainView]:
    """Show the learning domains in memory: rule, threshold, alarm, labels, audits."""
    hit_decider = _hit_decider(engine)
    domains = hit_decider.learner.domains
    audits, named = hit_decider.audits, [(name, domains.get(name)) for name in domains.names()]
    return [
        DomainView(
            domain=name,
            max_error=domain.error_limit.max_error,
            error_of=domain.error_limit.error_of,
            confidence=domain.error_limit.confidence,
            audit_rate=audits.rate(domain.audit_rate(audits.settings.rate)),
            status=domain.status(),
        )
        for name, domain in named
    ]


@get("/learning/{domain:str}/state", media_type="application/octet-stream")
async def state(domain: FromPath[str], engine: Engine) -> Response[bytes]:
    """Export the learned state of a domain in memory, as a file for ``cache.state``."""
    found = _hit_decider(engine).learner.domains.find(domain)
    if found is None:
        raise NotFoundException("no learning domain in memory has this name: see GET learning")
    return Response(found.snapshot(), media_type="application/octet-stream")


@get("/audit")
async def audit(engine: Engine, since: Since = 0.0) -> AuditReport:
    """Show error bounds from audits, by domain and week, and the wrong hits that audits found."""
    error_limit = _hit_decider(engine).error_limit
    return await audit_report(engine.store, error_limit, since=since)


@post("/feedback", status_code=200)
async def feedback(data: JSONBody[Feedback], engine: Engine) -> LabelWritten:
    """Take feedback on a recent semantic hit or near miss. "wrong" blocks the hit at once."""
    learner = _hit_decider(engine).learner
    if not await learner.feedback(data.id, same=data.correct, pair_only=data.pair_only):
        raise NotFoundException("no recent request with this id was compared with a neighbour")
    return LabelWritten()


@get("/review")
async def review_pairs(admin: Admin, engine: Engine, limit: Limit = 20) -> list[ReviewPair]:
    """List the borderline pairs, the most doubtful first, with their texts."""
    hit_decider = _hit_decider(engine)
    await admin.reviews.follow(engine.store)
    doubts = await most_doubtful(admin.reviews.unreviewed(), hit_decider)
    pairs: list[ReviewPair] = []
    for start in range(0, len(doubts), LOADED_AT_ONCE):
        pairs += await _with_texts(admin, engine, doubts[start : start + LOADED_AT_ONCE])
        if len(pairs) >= limit:
            break
    return pairs[:limit]


@post("/review", status_code=200)
async def review(data: JSONBody[Reviewed], admin: Admin, engine: Engine) -> LabelWritten:
    """Take a person's judgement on a pair that ``GET`` listed."""
    hit_decider = _hit_decider(engine)
    await admin.reviews.follow(engine.store)
    label = admin.reviews.find(data.id, data.entry)
    if label is None:
        raise NotFoundException("this pair is not among the recent labels")
    await hit_decider.learner.review(label, same=data.same)
    return LabelWritten()


@get("/explain/{id:str}")
async def explain(id: FromPath[str], admin: Admin, engine: Engine) -> dict[str, Any]:
    """Explain the answer to a recent request: ids, reasons and features, no texts."""
    found = await gather_answers(admin, engine, f"{EXPLAIN}{id}")
    for explained in filter(None, found.live):
        return msgspec.json.decode(explained, type=dict[str, Any])
    raise NotFoundException(
        f"no request with this id is among the last {admin.recent.maxlen} of this process"
    )


@get("/review/page", opt={"public": True}, include_in_schema=False, sync_to_thread=True)
def review_page() -> Response[str]:
    """Return the page."""
    return page_response("review.html")


LEARNING_HANDLERS: tuple[Any, ...] = (
    learning, state, audit, feedback, review_pairs, review, review_page, explain,
)  # fmt: skip


def _hit_decider(engine: EngineParts) -> HitDecider:
    if engine.hit_decider is None:
        raise NotFoundException(
            'nothing is learned here: cache.match is "static", or nothing is matched by meaning'
        )
    return engine.hit_decider


async def _with_texts(
    admin: AdminState, engine: EngineParts, doubts: Sequence[DoubtfulPair]
) -> list[ReviewPair]:
    """Return the pairs whose answers are both stored. Other pairs are dropped."""
    ids = [id for doubt in doubts for id in (doubt.label.id, doubt.label.entry)]
    entries = await engine.store.load(ids)
    pairs = []
    for doubt, asked, stored in zip(doubts, entries[::2], entries[1::2], strict=True):
        if asked is None or stored is None:
            admin.reviews.drop(doubt.label)
        else:
            pairs.append(_pair(doubt, asked, stored))
    return pairs


def _pair(doubt: DoubtfulPair, asked: Entry, stored: Entry) -> ReviewPair:
    label = doubt.label
    return ReviewPair(
        id=label.id,
        entry=label.entry,
        similarity=label.similarity,
        score=doubt.score,
        veto=label.veto,
        served=label.served,
        judged=label.same,
        asked=_side(asked),
        stored=_side(stored),
    )


def _side(entry: Entry) -> ReviewSide:
    return ReviewSide(question=entry.key.query or "", answer=shown_answer(entry))


# --- the live page --------------------------------------------------------------------------------

MOST_PAGES = 16
"""The most pages that may be open at the same time. Each gets an event every second."""
EVERY_S = 1.0
ALIVE_S = 15.0
"""The longest time between two events for a page, so that it notices a broken connection."""
REREAD_S = 30.0
"""Seconds after which the books are read again if there are several workers, because each worker
sees only its own requests."""

Only = Annotated[str | None, QueryParameter(description="Only requests with this value.")]


class LiveChoice(NamedTuple):
    """What a page shows: the last ``window_s`` seconds, and the requests that match ``wanted``."""

    window_s: float
    wanted: LiveFilter


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
    """Return the period and the filters that the live page asks for."""
    return LiveChoice(window_s, LiveFilter(caller, route, model, endpoint, tag))


Asked: TypeAlias = NamedDependency[SkipValidation[LiveChoice]]


class Safety(Frozen, omit_defaults=False):
    """The known rates of wrong hits, over the learning domains in memory."""

    max_error: float
    audits: int
    wrong: int
    domains: int
    alarms: int
    """The domains with an alarm: they serve no semantic hits, because too many were wrong."""
    worst_bound: float | None
    """The highest upper bound of the share of wrong hits in a domain."""


class Overview(Frozen, omit_defaults=False):
    """All that the live page shows."""

    view: LiveView
    wrapped: bool
    """Whether a wrapped app answers, and not a provider."""
    upstreams: list[UpstreamStatus]
    calls: list[CallCount]
    safety: Safety | None
    """None: no learned rule is in use."""
    limits: list[LimitUse]
    """The used part of the limits of client keys."""
    requests: list[RequestRow]
    """The last requests, the newest first."""


@get("/", opt={"public": True}, include_in_schema=False, sync_to_thread=True)
def live_page() -> Response[str]:
    """Return the page. It contains no data; it asks for the data with the admin token."""
    return page_response("live.html")


@get("/live")
async def live(admin: Admin, engine: Engine, asked: Asked) -> Overview:
    """Show the savings, the upstreams and the last requests of a window of time."""
    totals = await _totals(admin, engine)
    return await _overview(engine, totals, await recent_calls(admin, engine, asked.wanted), asked)


@get("/live/events")
async def live_events(admin: Admin, engine: Engine, asked: Asked) -> ServerSentEvent:
    """Send what ``live`` returns as server-sent events: now, and each second if it has changed."""
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
    """Return the totals. The first call computes them from the books in the store.

    From then on, a process that is alone adds its requests to them (``observers``). One of several
    workers reads the books again after ``REREAD_S``.
    """
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
                logger.warning("the live page starts without the books in the store: %s", error)
            pages.totals, pages.read_at = totals, admin.clock()
        return pages.totals


async def _events(
    admin: AdminState, engine: EngineParts, asked: LiveChoice
) -> AsyncIterator[ServerSentEventMessage]:
    """Yield what a page shows: at once, when it has changed, and at least every ``ALIVE_S``."""
    pages, loop = admin.pages, asyncio.get_running_loop()
    pages.open += 1
    try:
        shown, sent_at, until = None, 0.0, loop.time() + pages.stream_s
        while not admin.draining() and loop.time() < until:
            totals = await _totals(admin, engine)
            recent = await recent_calls(admin, engine, asked.wanted)
            # Each minute the window of time moves on.
            minute, calls = admin.clock() // 60, (recent.requests, recent.calls)
            present = (id(totals), totals.version, minute, calls)
            if present != shown or loop.time() - sent_at > ALIVE_S:
                shown, sent_at = present, loop.time()
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
        wrapped=engine.states is None,
        upstreams=recent.upstreams,
        calls=recent.calls,
        safety=_safety(engine),
        limits=[each for each in limits if asked.wanted.caller in (None, each.caller)],
        requests=recent.requests,
    )


def _safety(engine: EngineParts) -> Safety | None:
    """Return the rates of wrong hits; None if nothing is learned."""
    if engine.hit_decider is None:
        return None
    domains = engine.hit_decider.learner.domains
    found = [domains.get(name).status() for name in domains.names()]
    bounds = [each.bound for each in found if each.bound is not None]
    return Safety(
        max_error=engine.hit_decider.error_limit.max_error,
        audits=sum(each.audits for each in found),
        wrong=sum(each.audits_wrong for each in found),
        domains=len(found),
        alarms=sum(each.alarm for each in found),
        worst_bound=max(bounds, default=None),
    )
