"""The sidecar app: the gateway in front, the admin app behind it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry

from headstart.errors import ConfigError, MissingExtra
from headstart.middleware.admin_front import AdminFront, AdminState
from headstart.middleware.asgi import behind_gateway
from headstart.middleware.metrics import OpenTelemetryObserver, PrometheusObserver
from headstart.middleware.observers import RecentRequests, RefusedKeys
from headstart.mount import build_gateway
from headstart.observe import Observers
from headstart.policies.callers import OriginRules
from headstart.settings import masked, masked_variable

if TYPE_CHECKING:
    from headstart.factory import Parts
    from headstart.middleware.asgi import Gateway
    from headstart.middleware.asgi_types import ASGIApp
    from headstart.settings import ServerSettings, Settings


def build_sidecar(settings: Settings) -> Gateway:
    """Return the provider routes with the admin API beside them, under ``/_headstart/``.

    The app's lifespan starts and stops the engine. Raises ConfigError when the variable of
    ``server.admin_token_env`` is not set.
    """
    engine: list[Parts] = []
    metrics = PrometheusObserver(CollectorRegistry())
    recent = RecentRequests()
    variables = {each.name: ", ".join(each.key_variables) for each in settings.upstream}
    refused = RefusedKeys({name: own for name, own in variables.items() if own})
    observers = Observers((metrics, recent, refused))
    with contextlib.suppress(MissingExtra):  # the extra ``otel`` is not installed
        observers.add(OpenTelemetryObserver())
    state = AdminState(
        engine=lambda: engine[-1] if engine else None,
        metrics=metrics,
        recent=recent,
        observers=observers,
        config=masked(settings),
        clock=time.time,  # noqa: TID251 - the composition root
        started=time.time(),  # noqa: TID251 - the same
        draining=lambda: sidecar.draining,
    )
    server = settings.server
    token = _admin_token(server)

    def build_admin() -> ASGIApp:
        from headstart.middleware.admin import admin_app

        rules = _rules(server, "server.admin_token_env") if server.is_loopback else None
        # The same calls in Litestar's own types.
        return cast("ASGIApp", admin_app(state, token=token, rules=rules))

    sidecar = build_gateway(
        settings,
        behind_gateway(AdminFront(state, build_admin), home=server.is_loopback),
        observers=observers,
        origins=_rules(server, "server.client_keys"),
        on_start=engine.append,
    )
    return sidecar


def _rules(server: ServerSettings, instead: str) -> OriginRules:
    """Return the rules for web pages.

    Off loopback the server may have any name, unless its names are listed. There callers need a key
    for each request that costs money or returns data.
    """
    names = frozenset(name.lower() for name in server.allowed_hosts)
    is_open = "*" in names or not (names or server.is_loopback)
    return OriginRules(None if is_open else names, server.allowed_origins, instead)


def _admin_token(server: ServerSettings) -> bytes | None:
    if server.admin_token_env is None:
        return None
    token = os.environ.get(server.admin_token_env)
    if not token:
        shown = masked_variable(server.admin_token_env)
        raise ConfigError(f"server.admin_token_env: the variable {shown} is not set")
    return token.encode()
