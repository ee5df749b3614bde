"""The settings as frozen values. ``docs/configuration.md`` documents every key."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

GUARDS = ("number", "unit", "negation", "date", "antonym", "role-swap", "substitution")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the settings: immutable, and unknown keys are an error."""


class ServerSettings(Section):
    """``[server]``: where to listen, who may come in, how much at once."""

    host: str = "127.0.0.1"
    port: int = 8080
    admin_token_env: str | None = None
    client_keys: tuple[str, ...] = ()
    """Keys that callers must present; ``env:NAME`` reads one from the environment."""
    trusted_proxies: tuple[str, ...] = ()
    max_body_bytes: int = 32 * 1024 * 1024
    max_concurrency: int = 512
    max_queue: int = 1024
    deadline_s: float = 600.0
    shutdown_s: float = 10.0

    def __repr__(self) -> str:
        return f"ServerSettings({masked(self)})"


class CacheSettings(Section):
    """``[cache]``: what may be answered from the store, and for whom."""

    enabled: bool = True
    mode: Literal["serve", "exact-only"] = "serve"
    match: Literal["static"] = "static"
    threshold: float | None = None
    """Least similarity of a semantic hit; unset: 0.90 with guards, 0.95 without."""
    guards: tuple[str, ...] = GUARDS
    scope: str = "credential"
    share_users: bool = False
    sampled: str = "always"
    holdout: float = 0.0
    store: str = "sqlite:///headstart.db"
    on_corrupt: Literal["fail", "fresh"] = "fail"
    ttl_s: float | None = 7 * 86400.0
    max_entries: int = 100_000
    max_bytes: int = 1024 * 1024 * 1024
    hot_bytes: int = 64 * 1024 * 1024
    key_headers: tuple[str, ...] = ()

    @property
    def similarity(self) -> float:
        """The threshold in force."""
        if self.threshold is not None:
            return self.threshold
        return 0.90 if self.guards else 0.95


class EncoderSettings(Section):
    """``[encoder]``: which model embeds prompts, and how long a request waits for it."""

    model: str = "default"
    threads: int | None = None
    max_tokens: int | None = None
    max_wait_ms: float = 20.0


class PriceSettings(Section):
    """Dollars per million tokens."""

    input_per_million: float
    output_per_million: float


class UpstreamSettings(Section):
    """``[[upstream]]``: one provider."""

    name: str
    base_url: str
    dialect: Literal["openai"] = "openai"
    api_key_env: str | None = None
    """Variable that holds the provider's key; unset: the caller's own key passes."""
    models: dict[str, str] = {}
    price: dict[str, PriceSettings] = {}
    """By model; ``"*"`` is the default for the upstream."""
    headers: dict[str, str] = {}
    connect_s: float = 10.0
    first_token_s: float = 120.0
    read_s: float = 120.0
    include_usage: bool = True
    proxy: str | None = None
    ca_file: str | None = None


SECTIONS: dict[str, type[Section]] = {
    "server": ServerSettings,
    "cache": CacheSettings,
    "encoder": EncoderSettings,
    "upstream": UpstreamSettings,
}


class Settings(Section):
    """All settings, validated. Build them with ``load_settings``."""

    server: ServerSettings = ServerSettings()
    cache: CacheSettings = CacheSettings()
    encoder: EncoderSettings = EncoderSettings()
    upstream: tuple[UpstreamSettings, ...] = ()

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach ``server.host``."""
        return _is_loopback(self.server.host)

    def client_keys(self, environ: Mapping[str, str]) -> tuple[bytes, ...]:
        """Return the keys that callers must present. Raises ConfigError for a missing variable."""
        return tuple(_secret(key, "server.client_keys", environ) for key in self.server.client_keys)


def masked(settings: msgspec.Struct) -> dict[str, Any]:
    """Return settings as plain values with every secret replaced by ``***``."""
    values: dict[str, Any] = msgspec.to_builtins(settings)
    for server in (values, values.get("server", {})):
        if "client_keys" in server:
            server["client_keys"] = [
                key if key.startswith("env:") else "***" for key in server["client_keys"]
            ]
    for upstream in values.get("upstream", ()):
        if "headers" in upstream:
            upstream["headers"] = dict.fromkeys(upstream["headers"], "***")
        if upstream.get("proxy"):
            upstream["proxy"] = mask_url(upstream["proxy"])
    if "cache" in values and "store" in values["cache"]:
        values["cache"]["store"] = mask_url(values["cache"]["store"])
    return values


def mask_url(url: str) -> str:
    """Return a URL with what may hold a password replaced by ``***``."""
    scheme, separator, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{'***' if user else ''}{at}{host}"


def _secret(value: str, setting: str, environ: Mapping[str, str]) -> bytes:
    if not value.startswith("env:"):
        return value.encode()
    name = value.removeprefix("env:")
    if not environ.get(name):
        raise ConfigError(f"{setting}: the variable {name} is not set")
    return environ[name].encode()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
