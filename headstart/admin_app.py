"""The admin pages in one's own app: the same that the sidecar has under ``/_headstart/``."""

from __future__ import annotations

import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry

from headstart.errors import ConfigError
from headstart.middleware.admin_front import AdminFront, AdminState, LivePages
from headstart.middleware.asgi import ADMIN_PREFIX, answer_json, not_found
from headstart.middleware.metrics import PrometheusObserver
from headstart.middleware.observers import RecentRequests
from headstart.middleware.respond import send_whole
from headstart.observe import Observers
from headstart.policies.callers import OriginRules
from headstart.settings import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.factory import Parts
    from headstart.observe import Observer
    from headstart.settings import Settings
    from headstart.types import ASGIApp

STREAM_S = 5.0
"""A server that stops waits for its streams of events, and does not say that it stops. So the live
page opens a new one after this time."""


class AdminApp:
    """ASGI app with the admin pages of one middleware or gateway, to mount at any path.

    ``app.add_middleware(HeadstartMiddleware, admin=admin)`` and ``app.mount("/headstart", admin)``.
    With a ``token`` all data asks for it as a bearer. Without one only this machine may ask, over a
    loopback address and through no proxy; others get 403. An empty token raises ConfigError.
    """

    def __init__(self, *, token: str | None = None) -> None:
        if token is not None and not token.strip():
            raise ConfigError("AdminApp(token=…): the token is empty")
        self._token = None if token is None else token.strip().encode()
        self._front: AdminFront | None = None
        self._parts: Parts | None = None

    def attach(self, settings: Settings, observers: Sequence[Observer]) -> Observers:
        """Show an engine with these settings, once ``started`` was called with its parts.

        Return ``observers`` and those of the pages. The engine that was attached last is shown.
        """
        metrics, recent = PrometheusObserver(CollectorRegistry()), RecentRequests()
        all_of_them = Observers([*observers, metrics, recent])
        clock = time.time  # noqa: TID251 - the composition root
        state = AdminState(
            engine=lambda: self._parts,
            metrics=metrics,
            recent=recent,
            observers=all_of_them,
            config=masked(settings),
            clock=clock,
            started=clock(),
            pages=LivePages(stream_s=STREAM_S),
        )

        def build() -> ASGIApp:
            from headstart.middleware.admin import admin_app

            rules = OriginRules(instead="AdminApp(token=…)")
            # The same calls in Litestar's own types.
            return cast("ASGIApp", admin_app(state, token=self._token, rules=rules))

        self._front = AdminFront(state, build)
        return all_of_them

    def started(self, parts: Parts) -> None:
        """Show these parts of an engine that has started."""
        self._parts = parts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            await not_found(scope, receive, send)
        elif self._front is None:
            why = "give this AdminApp to a HeadstartMiddleware or to gateway(): admin=…"
            await answer_json(send, 503, "not_ready", why)
        elif self._token is None and not _is_local(scope):
            why = "the admin pages of a server that others can reach need AdminApp(token=…)"
            await answer_json(send, 403, "forbidden", why)
        elif not (path := scope["path"].removeprefix(scope.get("root_path", ""))):
            place = scope["path"].encode() + b"/"
            await send_whole(send, 307, ((b"location", place), (b"content-length", b"0")), b"")
        else:
            own = ADMIN_PREFIX.decode() + path.lstrip("/")
            below = {"path": own, "raw_path": own.encode(), "root_path": ""}
            await self._front({**scope, **below}, receive, send)


def _is_local(scope: Any) -> bool:
    """Tell whether the connection was made from this machine to a loopback address."""
    try:
        return all(ip_address(scope[end][0]).is_loopback for end in ("client", "server"))
    except (KeyError, TypeError, ValueError):  # a Unix socket, or a server that does not say
        return False
