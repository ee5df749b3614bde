"""The admin API under ``/_headstart/``: health, metrics, the cache's contents, explanations.

``docs/headers.md`` lists the paths. Prompts and answers are shown only with ``?texts=1``.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from anyio import to_thread
from litestar import Litestar, Request, Response, get, post
from litestar.di import Provide
from litestar.exceptions import (
    HTTPException,
    NotAuthorizedException,
    NotFoundException,
    PermissionDeniedException,
    ServiceUnavailableException,
    ValidationException,
)
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from prometheus_client import CONTENT_TYPE_LATEST

from headstart.decisions import Outcome
from headstart.errors import HeadstartError, StoreError
from headstart.middleware.admin_front import (
    NOT_CACHED,
    EngineParts,
    Health,
    Readiness,
    readiness,
)
from headstart.middleware.admin_learning import LEARNING_HANDLERS
from headstart.middleware.admin_live import LIVE_HANDLERS, choose_requests
from headstart.middleware.admin_state import (
    ENTRY_HANDLERS,
    Admin,
    Engine,
    UpstreamsView,
    choose_entries,
)
from headstart.middleware.metrics import Levels  # noqa: TC001 - msgspec reads it
from headstart.middleware.worker_figures import (
    COUNTS,
    METRICS,
    UPSTREAMS,
    Counted,
    gathered,
    merge_counts,
    merge_metrics,
    merge_upstreams,
)
from headstart.observe import logger
from headstart.policies.callers import forwarded
from headstart.types import (
    Frozen,
    LimitUse,
)

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler

    from headstart.middleware.admin_front import AdminState
    from headstart.policies.callers import OriginRules

PREFIX = "/_headstart"


class Stats(Frozen, omit_defaults=False):
    """Counts since the start of the server, and how much there is now."""

    uptime_s: float
    requests: int
    hits: dict[str, int]
    joined: int
    misses: int
    bypasses: int
    relayed: int
    """Requests of paths that are not cached; ``requests`` does not count them."""
    now: Levels


def admin_app(state: AdminState, *, token: bytes | None, rules: OriginRules | None) -> Litestar:
    """Return the admin app.

    With a ``token`` every path but ``health`` and ``ready`` asks for it as a bearer. Without one
    they are open to requests that keep ``rules``, for a server that only this machine reaches, and
    refused with 403 where there are none.
    """

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
        guards=[guard],
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


@get("/health", opt={"public": True})
async def health() -> Health:
    """Answer as long as the process lives."""
    return Health()


@get("/ready", opt={"public": True})
async def ready(admin: Admin) -> Response[Readiness]:
    """Answer 200 when requests can be served, else 503. ``reasons`` lists the causes.

    ``status`` is ``starting`` or ``draining`` with 503, and ``ready`` or ``degraded`` with 200:
    without its store the server still answers, from memory and from the upstreams.
    """
    found = await readiness(admin)
    return Response(found, status_code=found.code, headers=NOT_CACHED)


@get("/metrics", media_type="text/plain")
async def metrics(admin: Admin, engine: Engine) -> Response[bytes]:
    """Show the metrics in Prometheus's text format."""
    found = await gathered(admin, engine, METRICS)
    text = found.live[0]
    if len(found.live) > 1 or found.ended:
        text = await to_thread.run_sync(merge_metrics, found.live, found.ended)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


@get("/stats")
async def stats(admin: Admin, engine: Engine) -> Stats:
    """Show the counts of requests, and the present sizes."""
    found = await gathered(admin, engine, COUNTS)
    counted = merge_counts([msgspec.json.decode(each, type=Counted) for each in found.live])
    count = counted.outcomes
    return Stats(
        uptime_s=admin.clock() - admin.started,
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
    found = await gathered(admin, engine, UPSTREAMS)
    return merge_upstreams([msgspec.json.decode(each, type=UpstreamsView) for each in found.live])


@get("/limits")
async def limits(engine: Engine) -> list[LimitUse]:
    """Show what callers have used of the limits of their keys, in all workers and nodes."""
    return [] if engine.ledger is None else await engine.ledger.uses()


@post("/reload", status_code=200)
async def reload(admin: Admin) -> dict[str, bool]:
    """Read the configuration again: new requests are served by it. 422: it is wrong."""
    if admin.reload is None:
        raise NotFoundException("this server does not reload: headstart serve did not start it")
    try:
        await admin.reload()
    except HeadstartError as error:
        raise ValidationException(str(error)) from error
    return {"reloaded": True}


def _check_token(connection: ASGIConnection[Any, Any, Any, Any], token: bytes) -> None:
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode("latin-1"), token)
    if scheme.lower() != "bearer" or not right:
        raise NotAuthorizedException(
            "send the admin token: Authorization: Bearer …", headers={"www-authenticate": "Bearer"}
        )


def _check_origin(connection: ASGIConnection[Any, Any, Any, Any], rules: OriginRules) -> None:
    """Refuse requests of other sites' pages, and requests through a proxy on this machine."""
    headers = tuple(connection.scope["headers"])
    through = forwarded(headers, connection.scope["http_version"])
    if through is not None:
        raise PermissionDeniedException(
            f"this request came through a proxy ({through}), so others than this machine may have "
            f"sent it: the admin API then needs a token, {rules.instead}"
        )
    if why := rules.refusal(headers):
        raise PermissionDeniedException(why)


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """Answer in JSON: ``{"error": {"message", "type", "code"}}``."""
    headers = None
    if isinstance(error, ValidationException):
        status, message = HTTPStatus.UNPROCESSABLE_ENTITY, _explain_invalid(error)
    elif isinstance(error, HTTPException):
        status, message, headers = HTTPStatus(error.status_code), error.detail, error.headers
    elif isinstance(error, StoreError):
        status, message = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    else:
        logger.error("an admin request failed: %s", request.url.path, exc_info=error)
        status, message = HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"
    code = status.phrase.lower().replace(" ", "_")
    body = {"error": {"message": message, "type": code, "code": code}}
    return Response(body, status_code=int(status), headers=headers, media_type="application/json")


def _explain_invalid(error: ValidationException) -> str:
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
