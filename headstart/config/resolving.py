"""Upstreams made whole: what the user left out comes from the preset."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec

from headstart.canonical_request import Quirks
from headstart.config.models import model_table
from headstart.config.providers import preset, providers
from headstart.config.settings import is_loopback_host

if TYPE_CHECKING:
    from headstart.config.settings import Settings
    from headstart.config.upstreams import UpstreamSettings

T = TypeVar("T")


def resolved(settings: Settings) -> Settings:
    """Return the settings with complete upstreams; whole ones stay as they are."""
    upstreams = tuple(_complete(_recognised(each)) for each in settings.upstream)
    return msgspec.structs.replace(settings, upstream=upstreams)


def host_of(url: str) -> str:
    """Return a URL's host, "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _recognised(upstream: UpstreamSettings) -> UpstreamSettings:
    """A provider known by its address gets its preset, but never its key."""
    if upstream.preset is not None or is_loopback_host(host_of(upstream.base_url)):
        return upstream
    for known in providers().values():
        same = known.base_url.rstrip("/") == upstream.base_url.rstrip("/")
        if known.base_url and same and known.dialect == upstream.dialect:
            return msgspec.structs.replace(
                upstream,
                preset=known.name,
                name=upstream.name or _by_address(upstream.base_url),
                api_key_env=upstream.api_key_env or (),
            )
    return upstream


def _complete(upstream: UpstreamSettings) -> UpstreamSettings:
    known = preset(upstream.preset)
    if known is None:
        local = True if is_loopback_host(host_of(upstream.base_url)) else None
        return msgspec.structs.replace(
            upstream,
            name=upstream.name or _by_address(upstream.base_url),
            cancels_billing=_first(upstream.cancels_billing, local),
            quirks=_merged(Quirks(), upstream),
        )
    quirks = _merged(known.quirks, upstream)
    return msgspec.structs.replace(
        upstream,
        name=upstream.name or known.name,
        base_url=upstream.base_url or known.base_url,
        dialect=known.dialect,
        api_key_env=_first(upstream.api_key_env, known.variable or ()),
        models={**model_table().names_at(known.name), **upstream.models},
        cancels_billing=_first(upstream.cancels_billing, known.cancels_billing),
        quirks=quirks,
        include_usage=upstream.include_usage and quirks.stream_usage,
    )


def _by_address(url: str) -> str:
    """A bad URL is reported later."""
    return url.partition("://")[2].split("/")[0]


def _first(own: T | None, otherwise: T) -> T:
    return otherwise if own is None else own


def _merged(base: Quirks, upstream: UpstreamSettings) -> Quirks:
    """What the user wrote wins, field by field; what is dropped adds up."""
    own, unset = upstream.quirks, Quirks()
    written = {
        name: value
        for name in own.__struct_fields__
        if (value := getattr(own, name)) != getattr(unset, name)
    }
    return msgspec.structs.replace(
        msgspec.structs.replace(base, **written),
        drops=tuple(sorted({*base.drops, *own.drops, *upstream.drops})),
        message_drops=tuple(sorted({*base.message_drops, *own.message_drops})),
        renames={**base.renames, **own.renames},
        refuse=own.refuse or upstream.unsupported == "refuse",
    )
