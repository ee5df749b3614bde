"""What is known of providers: ``presets.toml``, dated data that any ``[[upstream]]`` overrides."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from headstart.canonical_request import Quirks
from headstart.config.section import Section
from headstart.config.upstreams import DialectName  # noqa: TC001 - msgspec reads it


class Preset(Section):
    """One provider, as an ``[[upstream]]`` with ``preset = name`` finds it."""

    name: str
    base_url: str = ""
    """Empty: every customer has an address of his own."""
    variable: str | None = None
    """The usual variable of its key; None: it needs no key."""
    dialect: DialectName = "openai"
    cancels_billing: bool | None = None
    """Does an abort stop billing? None: nobody says."""
    quirks: Quirks = msgspec.field(default_factory=Quirks)


def read_data(file: str) -> dict[str, Any]:
    """Return the tables of one of the dated data files beside this module."""
    document = tomllib.loads(files("headstart.config").joinpath(file).read_text(encoding="utf-8"))
    del document["as_of"]
    return document


@cache
def providers() -> dict[str, Preset]:
    """Return the presets by name, best known first."""
    return {
        name: msgspec.convert({"name": name, **table}, Preset)
        for name, table in read_data("presets.toml").items()
    }


def preset(name: str | None) -> Preset | None:
    """Return the preset of that name, or None."""
    return None if name is None else providers().get(name)
