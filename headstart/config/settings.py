"""What can be set, and the defaults. ``docs/configuration.md`` describes each setting.

The sections are plain values: building one checks nothing. ``checked`` does, and
``load_settings`` calls it. A ``repr`` never shows a key, a header's value or a password.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from headstart.config.compression import CompressionSettings
from headstart.config.masking import masked_fields
from headstart.config.output import OutputSettings
from headstart.config.routes import RouteSettings  # noqa: TC001 - msgspec reads it
from headstart.config.section import Count, Dollars, Seconds, Section, Share
from headstart.config.upstreams import UpstreamSettings  # noqa: TC001 - the same

Guard: TypeAlias = Literal[
    "number", "unit", "date", "name", "quantifier", "comparative", "negation", "role-swap",
    "scope", "antonym", "crossing", "substitution",
]  # fmt: skip
GUARDS: tuple[Guard, ...] = get_args(Guard)

DRAIN_S = 5.0
"""Longer than a load balancer usually takes to see that a server is not ready."""
THRESHOLD_WITH_GUARDS = 0.90
"""With all of them."""
THRESHOLD_WITHOUT_GUARDS = 0.95


class ServerSettings(Section):
    """``[server]``: the sidecar's socket, who may use it, and its limits."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    admin_token_env: str | None = None
    client_keys: tuple[str, ...] = ()
    """Literals or ``env:NAME``; ``load_settings`` puts the variable's value in its place."""
    trusted_proxies: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    relay_paths: tuple[str, ...] = ("*",)
    max_body_bytes: Count = 32 * 1024 * 1024
    max_body_values: Count = 100_000
    body_timeout_s: Seconds | None = 30.0
    head_timeout_s: Seconds | None = 30.0
    max_connections: Count | None = None
    """None: half of the file descriptors that the process may open."""
    max_concurrency: Count = 512
    max_relays: Count = 128
    max_queue: Annotated[int, msgspec.Meta(ge=0)] = 1024
    deadline_s: Seconds | None = 600.0
    drain_s: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    """None: ``effective_drain_s`` chooses."""
    shutdown_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0

    @property
    def effective_drain_s(self) -> float:
        """``drain_s``; left open, only a server that other machines can reach drains."""
        if self.drain_s is not None:
            return self.drain_s
        return 0.0 if self.is_loopback else DRAIN_S

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect."""
        return is_loopback_host(self.host)


class AuditSettings(Section):
    """``[cache.audit]``: hits that are asked upstream all the same, to learn whether they err."""

    mode: Literal["background", "sync", "off"] = "background"
    rate: Share = 0.02
    """Share of semantic hits that is always drawn; a young learning domain draws more."""
    null_rate: Share = 0.005
    """Share of exact hits that is drawn, to learn how much the answers of one prompt vary."""
    max_calls_per_hour: Count | None = None
    max_usd_per_day: Dollars | None = None


class JudgeSettings(Section):
    """``[cache.judge]``: a model that is asked where two answers can not be told apart."""

    upstream: str
    """Name of an ``[[upstream]]``."""
    model: str
    max_calls_per_hour: Count | None = 60
    max_usd_per_day: Dollars | None = None


class TtlByClass(Section):
    """``[cache.ttl_by_class]``: life of answers to questions whose answer ages."""

    live: Seconds = 300.0
    dated: Seconds = 21_600.0


class CacheSettings(Section):
    """``[cache]``: what is answered from the cache, for whom, and where entries live."""

    enabled: bool = True
    mode: Literal["serve", "shadow", "exact-only"] = "serve"
    match: Literal["verified", "static"] | None = None
    """None: ``effective_match`` chooses."""
    max_error: float | None = None
    error_of: Literal["hits", "requests"] = "hits"
    confidence: float | None = None
    cold_start: Literal["strict", "optimistic"] = "strict"
    shadow_first: Annotated[int, msgspec.Meta(ge=0)] = 0
    state: str | None = None
    threshold: Share | None = None
    guards: tuple[Guard, ...] = GUARDS
    scope: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(credential|shared|header:[A-Za-z0-9!#$%&'*+.^_`|~-]+)$",
            description='"credential", "shared" or "header:NAME"',
        ),
    ] = "credential"
    share_users: bool = False
    sampled: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(always|deterministic|variants:[1-9][0-9]{0,2})$",
            description='"always", "deterministic" or "variants:N", N from 1 to 999',
        ),
    ] = "always"
    holdout: Share = 0.0
    store: str = "sqlite:///headstart.db"
    on_corrupt: Literal["fail", "fresh"] = "fail"
    ttl_s: Seconds | None = 7 * 86400.0
    ttl_by_class: TtlByClass = TtlByClass()
    max_entries: Count | None = 100_000
    max_bytes: Count | None = 1024 * 1024 * 1024
    hot_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * 1024 * 1024
    key_headers: tuple[str, ...] = ()
    ignore_headers: tuple[str, ...] = ()
    audit: AuditSettings = AuditSettings()
    judge: JudgeSettings | None = None

    @property
    def effective_match(self) -> Literal["verified", "static"]:
        """``match``; left open, a threshold asks for static matching."""
        if self.match is not None:
            return self.match
        return "verified" if self.threshold is None else "static"

    @property
    def effective_threshold(self) -> float:
        """``threshold`` of static matching, or its default: the low one needs every guard."""
        if self.threshold is not None:
            return self.threshold
        guarded = set(self.guards) == set(GUARDS)
        return THRESHOLD_WITH_GUARDS if guarded else THRESHOLD_WITHOUT_GUARDS


class EncoderSettings(Section):
    """``[encoder]``: the sentence encoder. None leaves the choice to the encoder."""

    model: str = "default"
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    max_tokens: Count | None = None
    max_wait_ms: Annotated[float, msgspec.Meta(ge=0.0)] = 20.0


class RecordSettings(Section):
    """``[record]``: what was asked and answered, in the clear, for ``headstart tune``."""

    enabled: bool = False
    path: Annotated[str, msgspec.Meta(min_length=1)] = "headstart-record.jsonl"
    """Each day's file has its date before the suffix."""
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 30


class Settings(Section):
    """The whole configuration."""

    server: ServerSettings = ServerSettings()
    cache: CacheSettings = CacheSettings()
    encoder: EncoderSettings = EncoderSettings()
    upstream: tuple[UpstreamSettings, ...] = ()
    route: tuple[RouteSettings, ...] = ()
    record: RecordSettings = RecordSettings()
    compression: CompressionSettings = CompressionSettings()
    output: OutputSettings = OutputSettings()


def is_loopback_host(host: str) -> bool:
    """Return whether a bind address is reachable from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def masked(settings: Settings) -> dict[str, Any]:
    """Return the settings as plain data, with keys, header values and passwords masked."""
    return masked_fields(settings)
