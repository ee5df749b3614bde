"""What is no fault in a configuration, yet may not be what was meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headstart.config.providers import providers
from headstart.config.resolving import host_of
from headstart.config.settings import is_loopback_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.config.settings import Settings
    from headstart.config.upstreams import UpstreamSettings

_VERSION = re.compile(r"/v\d\w*(/|$)")


def notes_on(settings: Settings) -> Iterator[str]:
    """Yield what whoever starts checked settings should know of them."""
    cache = settings.cache
    if cache.enabled and cache.scope.startswith("header:") and not settings.server.trusted_proxies:
        yield (
            f"cache.scope: {cache.scope!r} is believed from server.trusted_proxies alone, and none "
            "is set: nothing is cached"
        )
    yield from _key_notes(settings)
    for upstream in settings.upstream:
        yield from _address_notes(upstream)


def _key_notes(settings: Settings) -> Iterator[str]:
    """Say who gets callers' own keys, where a key of one provider may reach another."""
    taking = [each for each in settings.upstream if not each.key_variables]
    if settings.server.client_keys or len(taking) < 2:
        return
    hosts = {host_of(each.base_url) for each in taking}
    if len(hosts) > 1 and not all(map(is_loopback_host, hosts)):
        names = ", ".join(repr(each.name) for each in taking)
        yield (
            f"upstreams {names} have no key of their own: a caller's key goes to the one that its "
            "model, or its route, asks for, whoever gave the key out; set api_key_env for each, or "
            "tell callers which models their key is for"
        )


def _address_notes(upstream: UpstreamSettings) -> Iterator[str]:
    if upstream.preset is not None:
        return
    host, path = host_of(upstream.base_url), urlsplit(upstream.base_url).path
    known = next((each for each in providers().values() if host_of(each.base_url) == host), None)
    if known is not None and known.variable is not None:
        yield (
            f"upstream {upstream.name!r}: {known.name} is known at {known.base_url}; what is known "
            f"of it is not used with this base_url unless you add preset = {known.name!r}"
        )
    elif upstream.speaks == "openai" and path.strip("/") and not _VERSION.search(path):
        address = upstream.base_url.rstrip("/")
        yield (
            f"upstream {upstream.name!r}: calls go to {address}/chat/completions; if that is no "
            f'such path, write base_url = "{address}/v1"'
        )
