"""The sidecar app: the gateway in front, the admin app behind it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry

from headstart.config import masked
from headstart.config.masking import masked_variable
from headstart.errors import ConfigError, MissingExtra
from headstart.middleware.admin import admin_app
from headstart.middleware.admin_state import AdminState
from headstart.middleware.metrics import PrometheusObserver
from headstart.middleware.otel import OpenTelemetryObserver
from headstart.middleware.recent import RecentRequests
from headstart.middleware.refused_keys import RefusedKeys
from headstart.middleware.sidecar import behind_gateway
from headstart.mount import build_gateway
from headstart.observe import Observers

if TYPE_CHECKING:
    from headstart.config import ServerSettings, Settings
    from headstart.factory import Parts
    from headstart.interfaces import Observer
    from headstart.middleware.asgi import Gateway
    from headstart.middleware.asgi_types import ASGIApp


def build_sidecar(settings: Settings) -> Gateway:
    """Return the provider routes with the admin API beside them, under ``/_headstart/``.

    The app's lifespan starts and stops the engine. Raises ConfigError when the variable of
    ``server.admin_token_env`` is not set.
    """
    engine: list[Parts] = []
    metrics = PrometheusObserver(CollectorRegistry())
    recent = RecentRequests()
    state = AdminState(
        engine=lambda: engine[-1] if engine else None,
        metrics=metrics,
        recent=recent,
        config=masked(settings),
        clock=time.time,  # noqa: TID251 - the composition root
        started=time.time(),  # noqa: TID251 - the same
        draining=lambda: sidecar.draining,
    )
    admin = admin_app(
        state, token=_admin_token(settings.server), open_access=settings.server.is_loopback
    )
    variables = {each.name: ", ".join(each.key_variables) for each in settings.upstream}
    refused = RefusedKeys({name: own for name, own in variables.items() if own})
    observers: list[Observer] = [metrics, recent, refused]
    with contextlib.suppress(MissingExtra):  # without the extra ``otel`` nobody asked for it
        observers.append(OpenTelemetryObserver())
    sidecar = build_gateway(
        settings,
        behind_gateway(cast("ASGIApp", admin)),  # the same calls in Litestar's own types
        observers=Observers(observers),
        on_start=engine.append,
    )
    return sidecar


def _admin_token(server: ServerSettings) -> bytes | None:
    if server.admin_token_env is None:
        return None
    token = os.environ.get(server.admin_token_env)
    if not token:
        shown = masked_variable(server.admin_token_env)
        raise ConfigError(f"server.admin_token_env: the variable {shown} is not set")
    return token.encode()
