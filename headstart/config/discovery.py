"""Without a file: the providers whose keys are in the usual variables, else a local server."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headstart.config.providers import providers
from headstart.config.upstreams import UpstreamSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOCAL_S = 0.2
"""A server on this machine accepts at once, or there is none."""


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
        if known.variable is None and lists_models(known.base_url)
    ]
    upstreams = tuple(UpstreamSettings(preset=known.name) for known in found)
    return upstreams, tuple(f"{known.name} answers at {known.base_url}" for known in found)


def lists_models(base_url: str) -> bool:
    """Does it list models? Any other server may have taken the port."""
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
