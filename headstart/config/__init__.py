"""Settings from ``headstart.toml``, the environment and the command line."""

from headstart.config.checks import checked
from headstart.config.discovery import discover_upstreams
from headstart.config.loading import load_settings
from headstart.config.settings import (
    GUARDS,
    AuditSettings,
    CacheSettings,
    EncoderSettings,
    JudgeSettings,
    PriceSettings,
    RecordSettings,
    RouteMatch,
    RouteSettings,
    ServerSettings,
    Settings,
    TtlByClass,
    UpstreamSettings,
    is_loopback_host,
    masked,
)

__all__ = [
    "GUARDS",
    "AuditSettings",
    "CacheSettings",
    "EncoderSettings",
    "JudgeSettings",
    "PriceSettings",
    "RecordSettings",
    "RouteMatch",
    "RouteSettings",
    "ServerSettings",
    "Settings",
    "TtlByClass",
    "UpstreamSettings",
    "checked",
    "discover_upstreams",
    "is_loopback_host",
    "load_settings",
    "masked",
]
