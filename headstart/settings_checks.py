"""The bounds that settings must keep, each with the words for breaking it."""

from __future__ import annotations

import difflib
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headstart.settings import GUARDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headstart.settings import Settings


def checks(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    """Yield (setting, is it fine, what it must be)."""
    server, cache, encoder = settings.server, settings.cache, settings.encoder
    yield "server.port", 0 <= server.port <= 65535, "must be between 0 and 65535"
    for name in ("max_body_bytes", "max_concurrency", "deadline_s", "shutdown_s"):
        yield f"server.{name}", getattr(server, name) > 0, "must be positive"
    yield "server.max_queue", server.max_queue >= 0, "must not be negative"
    yield "server.client_keys", all(server.client_keys), "must not hold an empty key"
    for network in server.trusted_proxies:
        yield "server.trusted_proxies", _is_network(network), f"has no address {network!r}"
    limit = cache.threshold
    yield "cache.threshold", limit is None or 0 < limit <= 1, "must be above 0 and at most 1"
    for guard in cache.guards:
        yield "cache.guards", guard in GUARDS, f"has no guard {guard!r}; {nearest(guard, GUARDS)}"
    scope = cache.scope
    fine = scope in ("credential", "shared") or scope.removeprefix("header:") not in ("", scope)
    yield "cache.scope", fine, "must be 'credential', 'shared' or 'header:NAME'"
    behind = not scope.startswith("header:") or bool(server.trusted_proxies)
    yield "cache.scope", behind, "= 'header:NAME' needs server.trusted_proxies: who may set it"
    name, _, number = cache.sampled.partition(":")
    fine = cache.sampled in ("always", "deterministic") or (
        name == "variants" and number.isdigit() and int(number) > 0
    )
    yield "cache.sampled", fine, "must be 'always', 'deterministic' or 'variants:k'"
    yield "cache.holdout", 0 <= cache.holdout < 1, "must be at least 0 and below 1"
    yield "cache.ttl_s", cache.ttl_s is None or cache.ttl_s > 0, "must be positive"
    for name in ("max_entries", "max_bytes", "hot_bytes"):
        yield f"cache.{name}", getattr(cache, name) > 0, "must be positive"
    yield "encoder.max_wait_ms", encoder.max_wait_ms > 0, "must be positive"
    yield from _upstream_checks(settings)


def _upstream_checks(settings: Settings) -> Iterator[tuple[str, bool, str]]:
    names = [upstream.name for upstream in settings.upstream]
    yield "upstream.name", len(set(names)) == len(names), "must be unique"
    for upstream in settings.upstream:
        url = urlsplit(upstream.base_url)
        fine = url.scheme in ("http", "https") and bool(url.hostname)
        yield "upstream.base_url", fine, f"of {upstream.name!r} must be an http(s) URL"
        yield "upstream.base_url", not url.username, "must not hold a password: use api_key_env"
        for name in ("connect_s", "first_token_s", "read_s"):
            yield f"upstream.{name}", getattr(upstream, name) > 0, "must be positive"
        guarded = settings.is_loopback or bool(settings.server.client_keys)
        yield (
            "server.client_keys",
            guarded or upstream.api_key_env is None,
            f"is required: {upstream.name!r} has its own key (upstream.api_key_env) and "
            f"server.host {settings.server.host!r} is reachable by others",
        )


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint at the valid name that a wrong one is closest to."""
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {close[0]!r}?" if close else f"valid names: {', '.join(valid)}"
