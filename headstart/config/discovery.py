"""Without a file: the providers whose keys are in the usual variables."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

from headstart.config.upstreams import UpstreamSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


def discover_upstreams(
    environ: Mapping[str, str],
) -> tuple[tuple[UpstreamSettings, ...], tuple[str, ...]]:
    """Return the upstreams that can be used, best known first, and a line on each key found.

    ``OPENAI_BASE_URL`` is not read: it is what points clients at Headstart itself.
    """
    text = files("headstart.config").joinpath("presets.toml").read_text(encoding="utf-8")
    upstreams: list[UpstreamSettings] = []
    notes: list[str] = []
    for provider in tomllib.loads(text)["provider"]:
        name, variable = provider["name"], provider["variable"]
        if not environ.get(variable):
            continue
        base_url = provider.get("base_url")
        if base_url is None:
            notes.append(f"{variable}: {name} is not supported in this version")
            continue
        dialect = provider.get("dialect", "openai")
        upstreams.append(
            UpstreamSettings(name=name, base_url=base_url, dialect=dialect, api_key_env=variable)
        )
        notes.append(f"{variable}: {name} at {base_url}")
    return tuple(upstreams), tuple(notes)
