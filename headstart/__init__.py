"""Headstart makes LLM calls faster and cheaper, with a cache in front of one or several providers.

There are three ways to use the same engine: ``HeadstartMiddleware`` wraps an ASGI app, ``gateway``
returns an app to mount, and ``headstart serve`` is a sidecar proxy. Importing this package loads
nothing heavy.
"""

from __future__ import annotations

from importlib import import_module

from headstart.errors import (
    ConfigError,
    EncoderError,
    HeadstartError,
    InvalidRequest,
    MissingExtra,
    NotCached,
    NoUpstream,
    Overloaded,
    RequestError,
    RequestTooLarge,
    StageError,
    StoreError,
    Unauthorized,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
    UpstreamUnreachable,
    VectorIndexError,
)

TYPE_CHECKING = False  # ``typing`` is slow to load, and this is loaded before all else
if TYPE_CHECKING:
    from typing import Any

    from headstart.clients import LiveDraft, wrap
    from headstart.compression.compress import compress
    from headstart.compression.result import Compression
    from headstart.config.strategies import cascade, cheapest, fallback, fastest, hedge, race, route
    from headstart.middleware.after_checks import after_checks
    from headstart.middleware.endpoints import Endpoint
    from headstart.mount import AdminApp, HeadstartMiddleware, gateway
    from headstart.settings import Settings, UpstreamSettings

__version__ = "0.1.0"

__all__ = [
    "AdminApp",
    "Compression",
    "ConfigError",
    "EncoderError",
    "Endpoint",
    "HeadstartError",
    "HeadstartMiddleware",
    "InvalidRequest",
    "LiveDraft",
    "MissingExtra",
    "NoUpstream",
    "NotCached",
    "Overloaded",
    "RequestError",
    "RequestTooLarge",
    "Settings",
    "StageError",
    "StoreError",
    "Unauthorized",
    "UpstreamError",
    "UpstreamProtocolError",
    "UpstreamRefused",
    "UpstreamSettings",
    "UpstreamTimeout",
    "UpstreamUnavailable",
    "UpstreamUnreachable",
    "VectorIndexError",
    "__version__",
    "after_checks",
    "cascade",
    "cheapest",
    "compress",
    "fallback",
    "fastest",
    "gateway",
    "hedge",
    "race",
    "route",
    "wrap",
]

_LAZY = {
    "AdminApp": "headstart.mount",
    "Compression": "headstart.compression.result",
    "Endpoint": "headstart.middleware.endpoints",
    "HeadstartMiddleware": "headstart.mount",
    "LiveDraft": "headstart.clients",
    "Settings": "headstart.settings",
    "UpstreamSettings": "headstart.settings",
    "after_checks": "headstart.middleware.after_checks",
    "compress": "headstart.compression.compress",
    "gateway": "headstart.mount",
    "wrap": "headstart.clients",
    **dict.fromkeys(
        ("cascade", "cheapest", "fallback", "fastest", "hedge", "race", "route"),
        "headstart.config.strategies",
    ),
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'headstart' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
