"""Settings from ``headstart.toml``, the environment and the command line."""

from headstart.config.checks import checked
from headstart.config.compression import CompressionSettings
from headstart.config.discovery import discover_local, discover_upstreams
from headstart.config.loading import load_settings, override_cache
from headstart.config.models import ModelTable, aliases, context_at, model_at, model_table, price_at
from headstart.config.notes import notes_on
from headstart.config.output import OutputSettings
from headstart.config.providers import Preset, preset, providers
from headstart.config.resolving import resolved
from headstart.config.routes import RouteMatch, RouteSettings, StrategySettings
from headstart.config.settings import (
    GUARDS,
    AuditSettings,
    CacheSettings,
    EncoderSettings,
    JudgeSettings,
    RecordSettings,
    ServerSettings,
    Settings,
    TtlByClass,
    is_loopback_host,
    masked,
)
from headstart.config.strategies import Strategy, strategy_of
from headstart.config.upstreams import PriceSettings, UpstreamSettings

__all__ = [
    "GUARDS",
    "AuditSettings",
    "CacheSettings",
    "CompressionSettings",
    "EncoderSettings",
    "JudgeSettings",
    "ModelTable",
    "OutputSettings",
    "Preset",
    "PriceSettings",
    "RecordSettings",
    "RouteMatch",
    "RouteSettings",
    "ServerSettings",
    "Settings",
    "Strategy",
    "StrategySettings",
    "TtlByClass",
    "UpstreamSettings",
    "aliases",
    "checked",
    "context_at",
    "discover_local",
    "discover_upstreams",
    "is_loopback_host",
    "load_settings",
    "masked",
    "model_at",
    "model_table",
    "notes_on",
    "override_cache",
    "preset",
    "price_at",
    "providers",
    "resolved",
    "strategy_of",
]
