"""Upstreams are found by their key variables and completed from the presets."""

from __future__ import annotations

import http.client
import json
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import astuple

from headstart.canonical_request import Quirks
from headstart.config.providers import model_table, preset, providers, tiers
from headstart.settings import UpstreamSettings
from headstart.sockets import is_loopback_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headstart.config.providers import Preset
    from headstart.settings import Settings

_LOCAL_S = 0.2
"""A server on this machine accepts within this time."""


def discover_upstreams(
    environ: Mapping[str, str],
) -> tuple[tuple[UpstreamSettings, ...], tuple[str, ...]]:
    """Return the upstreams that can be used, best known first, and a line on each key found.

    ``OPENAI_BASE_URL`` is not read: it is what points clients at Headstart itself.
    """
    upstreams: list[UpstreamSettings] = []
    notes: list[str] = []
    for known in providers().values():
        if known.variable is None or not environ.get(known.variable):
            continue
        if not known.base_url:
            notes.append(f"{known.variable}: {known.name} needs an [[upstream]] with base_url")
            continue
        upstreams.append(UpstreamSettings(preset=known.name))
        notes.append(f"{known.variable}: {known.name} at {known.base_url}")
    return tuple(upstreams), tuple(notes)


def discover_local() -> tuple[tuple[UpstreamSettings, ...], tuple[str, ...]]:
    """Return the model servers that answer on their usual ports of this machine, and notes."""
    found = [
        known
        for known in providers().values()
        if known.variable is None and known.auth == "key" and lists_models(known.base_url)
    ]
    upstreams = tuple(UpstreamSettings(preset=known.name) for known in found)
    return upstreams, tuple(f"{known.name} answers at {known.base_url}" for known in found)


def lists_models(base_url: str) -> bool:
    """Return whether the server lists models. Any other program may use the port."""
    place = urlsplit(base_url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_LOCAL_S)
    try:
        connection.request("GET", f"{place.path}/models")
        listed = json.loads(connection.getresponse().read(1 << 20))
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return isinstance(listed, dict) and isinstance(listed.get("data"), list)


T = TypeVar("T")


def resolved(settings: Settings) -> Settings:
    """Return the settings with complete upstreams; whole ones stay as they are."""
    upstreams = tuple(
        msgspec.structs.replace(
            _with_tier(_complete(_recognised(each))),
            price_file=each.price_file or settings.prices.file,
        )
        for each in settings.upstream
    )
    return msgspec.structs.replace(settings, upstream=(*upstreams, *_tiers(upstreams, settings)))


def _tiers(
    upstreams: tuple[UpstreamSettings, ...], settings: Settings
) -> Iterator[UpstreamSettings]:
    """Yield an upstream for each tier that routes name as ``openai:flex``."""
    known = {each.name: each for each in upstreams}
    named = (name for route in settings.route for name in _names(route.upstreams or ()))
    for name in dict.fromkeys(named):
        base, _, tier = name.rpartition(":")
        if name not in known and base in known and tier in tiers(known[base].preset or ""):
            fields = msgspec.structs.asdict(known[base])
            # A price of the base is that of its standard tier.
            own = {"name": name, "tier": tier, "price": {}}
            yield _with_tier(UpstreamSettings(**{**fields, **own}))


def _names(upstreams: Iterable[object]) -> Iterator[str]:
    """Yield the names in an order of upstreams and strategies."""
    for each in upstreams:
        if isinstance(each, str):
            yield each
        else:
            yield from _names(getattr(each, "upstreams", ()) or ())


def _with_tier(upstream: UpstreamSettings) -> UpstreamSettings:
    """Return an upstream whose requests ask for its tier."""
    tier = tiers(upstream.preset or "").get(upstream.tier) if upstream.tier else None
    if tier is None:
        return upstream
    return msgspec.structs.replace(
        upstream,
        fields={**tier.fields, **upstream.fields},
        headers={**tier.headers, **upstream.headers},
    )


def host_of(url: str) -> str:
    """Return a URL's host, "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _recognised(upstream: UpstreamSettings) -> UpstreamSettings:
    """Set the preset of an upstream with a known provider's address, but never its key."""
    if upstream.preset is not None or is_loopback_host(host_of(upstream.base_url)):
        return upstream
    for known in providers().values():
        same_dialect = upstream.dialect in (None, known.dialect, *known.also_speaks)
        if same_dialect and _is_address_of(upstream.base_url, known.base_url):
            return msgspec.structs.replace(
                upstream,
                preset=known.name,
                base_url=known.base_url,
                name=upstream.name or _by_address(upstream.base_url),
                api_key_env=upstream.api_key_env or (),
            )
    return upstream


def _is_address_of(url: str, known: str) -> bool:
    """Return whether a URL is a provider's address, or the host of that address alone."""
    url = url.rstrip("/")
    alone = url.count("/") == 2 and known.startswith(f"{url}/")
    return bool(known) and (alone or url == known.rstrip("/"))


def _complete(upstream: UpstreamSettings) -> UpstreamSettings:
    known = preset(upstream.preset)
    if known is None:
        return msgspec.structs.replace(
            upstream,
            name=upstream.name or _by_address(upstream.base_url),
            cancels_billing=_first(upstream.cancels_billing, sends_no_bill(upstream) or None),
            dialect=upstream.speaks,
            also_speaks=upstream.further,
            quirks=_merged(Quirks(), upstream),
        )
    dialect = upstream.dialect or known.dialect
    quirks = _merged(known.quirks if dialect == known.dialect else Quirks(), upstream)
    others = [each for each in (known.dialect, *known.also_speaks) if each != dialect]
    return msgspec.structs.replace(
        upstream,
        name=upstream.name or known.name,
        base_url=_address(upstream, known),
        auth=upstream.auth or known.auth,
        dialect=dialect,
        also_speaks=_first(upstream.also_speaks, tuple(others)),
        api_key_env=_first(upstream.api_key_env, known.variable or ()),
        models={**model_table().names_at(known.name), **upstream.models},
        cancels_billing=_first(
            upstream.cancels_billing,
            _is_free(upstream) or upstream.price_per_hour is not None or known.cancels_billing,
        ),
        quirks=quirks,
        include_usage=upstream.include_usage and quirks.stream_usage,
    )


def _address(upstream: UpstreamSettings, known: Preset) -> str:
    """Return the base URL; a host alone means the provider's usual path."""
    url = upstream.base_url or known.base_url
    if not known.path or url.rstrip("/").count("/") > 2:
        return url
    path = known.path if upstream.api_version is None else known.path.removesuffix("/v1")
    return url.rstrip("/") + path


def sends_no_bill(upstream: UpstreamSettings) -> bool:
    """Tell whether a call costs nothing, or the upstream is on no public network."""
    host = host_of(upstream.base_url)
    try:
        private = ip_address(host).is_private
    except ValueError:
        private = bool(host) and ("." not in host or host.endswith((".internal", ".local")))
    return private or _is_free(upstream) or upstream.price_per_hour is not None


def _is_free(upstream: UpstreamSettings) -> bool:
    prices = upstream.price.values()
    return "default" in upstream.price and not any(any(astuple(each)) for each in prices)


def _by_address(url: str) -> str:
    """Return the host and port of a URL. A bad URL is reported later."""
    return url.partition("://")[2].split("/")[0]


def _first(own: T | None, otherwise: T) -> T:
    return otherwise if own is None else own


def _merged(base: Quirks, upstream: UpstreamSettings) -> Quirks:
    """Return quirks in which the user's fields win; dropped fields of both add up."""
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
