"""What types cannot say: settings that contradict each other, and URLs."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from ipaddress import ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from headstart.config.masking import masked_url
from headstart.config.names import hint
from headstart.config.providers import preset, providers
from headstart.config.resolving import resolved
from headstart.config.routes import JudgeInCode
from headstart.config.safety import safety_problems
from headstart.config.settings import Settings
from headstart.config.strategy_checks import strategy_problems
from headstart.config.wording import problem
from headstart.errors import ConfigError
from headstart.interfaces import STORES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.config.settings import ServerSettings
    from headstart.config.upstreams import UpstreamSettings

STORE_SCHEMES = ("sqlite", "memory", "redis", "rediss")
"""Of the stores that come with Headstart."""
_HOST = re.compile(r"[A-Za-z0-9._-]+|(?=.*:.*:)[0-9A-Fa-f:.]+")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?!\*$)[^/?#\s@]+")
_RELAYED = re.compile(r"([A-Z]+ )?(/\S*|\*)")
KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def checked(settings: Settings) -> Settings:
    """Return the settings with complete upstreams (``resolving``).

    Raises ConfigError that names each setting at fault, and the fix.
    """
    try:
        settings = _converted(settings)
    except msgspec.ValidationError as error:
        raise ConfigError(problem(error)) from error
    if problems := list(_preset_problems(settings.upstream)):
        raise ConfigError("\n".join(problems))
    settings = resolved(settings)
    if problems := list(_problems(settings)):
        raise ConfigError("\n".join(problems))
    return settings


def _converted(settings: Settings) -> Settings:
    """Return settings with their types checked. What only code can say is handed on as it is."""
    kept: list[JudgeInCode] = []

    def keep(value: object) -> int:
        if not isinstance(value, JudgeInCode):
            raise TypeError(f"settings do not hold a {type(value).__name__}: {value!r}")
        kept.append(value)
        return len(kept) - 1

    plain = msgspec.to_builtins(settings, enc_hook=keep)
    return msgspec.convert(plain, Settings, dec_hook=lambda _, index: kept[index])


def _problems(settings: Settings) -> Iterator[str]:
    yield from _server_problems(settings.server)
    yield from _store_problems(settings.cache.store)
    for index, name in enumerate(settings.cache.ignore_headers):
        if name.lower() in KEY_HEADERS:
            yield (
                f"cache.ignore_headers[{index}]: {name!r} holds callers' keys, which tell who may "
                "share an answer"
            )
    names: set[str] = set()
    for index, upstream in enumerate(settings.upstream):
        setting = f"upstream[{index}]"
        yield from _upstream_problems(setting, upstream)
        if upstream.name in names:
            yield f"{setting}.name: {upstream.name!r} is taken by another upstream"
        names.add(upstream.name)
    yield from safety_problems(settings)
    yield from strategy_problems(settings)
    if settings.record.enabled and not settings.cache.enabled:
        yield (
            "record.enabled: answers are only read for the cache; set cache.enabled = true, and "
            'cache.mode = "shadow" to serve nothing but exact repeats'
        )
    if settings.server.is_loopback or settings.server.client_keys:
        return
    for index, upstream in enumerate(settings.upstream):
        if upstream.key_variables:
            yield (
                f"upstream[{index}].api_key_env: anyone who reaches server.host "
                f"{settings.server.host!r} could spend this key; set server.client_keys, or bind "
                "server.host to 127.0.0.1"
            )


def _server_problems(server: ServerSettings) -> Iterator[str]:
    for index, network in enumerate(server.trusted_proxies):
        try:
            ip_network(network, strict=False)
        except ValueError:
            yield (
                f"server.trusted_proxies[{index}]: {network!r} is neither an address nor a "
                "network such as 10.0.0.0/8"
            )
    for index, host in enumerate(server.allowed_hosts):
        if host != "*" and not _HOST.fullmatch(host):
            yield (
                f"server.allowed_hosts[{index}]: {host!r} is not a host's name alone, such as "
                'host.docker.internal, without scheme and port; "*" allows all'
            )
    for index, origin in enumerate(server.allowed_origins):
        if not _ORIGIN.fullmatch(origin):
            yield (
                f"server.allowed_origins[{index}]: {origin!r} is not an origin such as "
                "https://app.example, http://localhost:3000 or chrome-extension://ID; a * stands "
                "for any part of what follows ://, and to allow all set server.client_keys"
            )
    for index, path in enumerate(server.relay_paths):
        if not _RELAYED.fullmatch(path):
            yield (
                f"server.relay_paths[{index}]: {path!r} is not a path such as /v1/models or "
                '"GET /v1/files/*"; a * stands for any characters'
            )
    if server.admin_token_env is not None:
        yield from _variable_problems("server.admin_token_env", (server.admin_token_env,))
    if not all(server.client_keys):
        yield "server.client_keys: a key must not be empty"


def _store_problems(store: str) -> Iterator[str]:
    scheme, colon, rest = store.partition(":")
    if scheme not in STORE_SCHEMES or not colon:
        offered = sorted({each.name for each in entry_points(group=STORES)})
        if not colon or scheme not in offered:
            known = ", ".join(dict.fromkeys((*STORE_SCHEMES, *offered)))
            yield (
                f"cache.store: {masked_url(store)!r} is not a store; use sqlite:///path, memory: "
                f"or redis://host:6379/0. Known schemes: {known}; an installed distribution adds "
                f"its own by an entry point in the group {STORES}"
            )
    elif scheme == "memory" and rest:
        yield "cache.store: a store in memory is memory: with nothing behind it"
    elif scheme == "sqlite" and (not rest.startswith("///") or rest == "///"):
        yield "cache.store: a SQLite store is sqlite:///relative/path or sqlite:////absolute/path"


def _preset_problems(upstreams: Sequence[UpstreamSettings]) -> Iterator[str]:
    for index, upstream in enumerate(upstreams):
        setting, known = f"upstream[{index}]", preset(upstream.preset)
        if known is None:
            if upstream.preset is not None:
                yield (
                    f"{setting}.preset: no preset is named {upstream.preset!r}; "
                    f"{hint(upstream.preset, providers())}"
                )
            elif not upstream.base_url:
                names = ", ".join(providers())
                yield f"{setting}.base_url: required, or name a preset: {names}"
        elif upstream.dialect not in (None, known.dialect):
            yield (
                f"{setting}.dialect: preset {known.name!r} speaks {known.dialect!r}; leave out "
                "dialect, or preset"
            )
        elif not (upstream.base_url or known.base_url):
            yield (
                f"{setting}.base_url: preset {known.name!r} needs yours, such as "
                "https://RESOURCE.openai.azure.com/openai/v1"
            )


def _upstream_problems(setting: str, upstream: UpstreamSettings) -> Iterator[str]:
    yield from _url_problems(f"{setting}.base_url", upstream.base_url)
    if upstream.proxy is not None:
        yield from _url_problems(f"{setting}.proxy", upstream.proxy, may_have_user=True)
    if not upstream.base_url.isascii() or "?" in upstream.base_url or "#" in upstream.base_url:
        yield f"{setting}.base_url: must be ASCII, without query and fragment"
    yield from _variable_problems(f"{setting}.api_key_env", upstream.key_variables)


def _variable_problems(setting: str, variables: Sequence[str]) -> Iterator[str]:
    """Never repeat what is no name: it may be the key itself."""
    if not all(map(_VARIABLE.fullmatch, variables)):
        yield (
            f"{setting}: names an environment variable, such as OPENAI_API_KEY; put the key into "
            "one, and its name here"
        )


def _url_problems(setting: str, url: str, *, may_have_user: bool = False) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        yield f"{setting}: {masked_url(url)!r} is not a URL"
        return
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield f"{setting}: {masked_url(url)!r} must start with http:// or https:// and name a host"
    elif parts.username is not None and not may_have_user:
        yield f"{setting}: put the key into an environment variable and name it in api_key_env"
