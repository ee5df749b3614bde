"""Misspelt names and choices, answered with the nearest valid one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args, get_origin

import msgspec

from headstart.config.settings import (
    LATER,
    LATER_VALUES,
    CacheSettings,
    EncoderSettings,
    PriceSettings,
    ServerSettings,
    UpstreamSettings,
)
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "server": ServerSettings,
    "cache": CacheSettings,
    "encoder": EncoderSettings,
}
UPSTREAM = "upstream"


def check_document(document: Mapping[str, object]) -> None:
    """Raise ConfigError for the first unknown name or choice; msgspec checks the rest."""
    for section, table in document.items():
        check_name("", section, section)
        if section == UPSTREAM:
            for index, each in enumerate(table if isinstance(table, list | tuple) else ()):
                _check_table(UPSTREAM, f"{UPSTREAM}[{index}]", each)
        else:
            _check_table(section, section, table)


def check_name(section: str, name: str, shown: str) -> None:
    """Raise ConfigError unless ``name`` is a setting of ``section`` (``""``: a section)."""
    _check_known(name, tuple(_fields(section)), shown, later=LATER.get(section, frozenset()))


def check_choice(section: str, name: str, value: object, shown: str) -> None:
    """Raise ConfigError if the setting has choices and ``value`` is none of them."""
    choices = tuple(_choices(_fields(section)[name]))
    for each in value if isinstance(value, list | tuple) else (value,):
        if not choices or not isinstance(each, str) or each in choices:
            continue
        if each in LATER_VALUES.get(f"{section}.{name}", ()):
            raise ConfigError(f"{shown}: {each!r} is not supported in this version")
        raise ConfigError(f"{shown}: {each!r} is no choice; {_hint(each, choices)}")


def optional_settings(section: str) -> frozenset[str]:
    """Return the settings of a section that may have no value."""
    return frozenset(
        name for name, kind in _fields(section).items() if type(None) in get_args(kind)
    )


def _check_table(section: str, shown: str, table: object) -> None:
    if not isinstance(table, Mapping):
        return
    for name, value in table.items():
        check_name(section, name, f"{shown}.{name}")
        check_choice(section, name, value, f"{shown}.{name}")
    if section == UPSTREAM:
        _check_prices(f"{shown}.price", table.get("price"))


def _check_prices(shown: str, prices: object) -> None:
    for model, price in prices.items() if isinstance(prices, Mapping) else ():
        if not isinstance(price, Mapping):
            raise ConfigError(
                f"{shown}.{model}: a price is a table, by model or for all others: "
                f"{shown}.default = {{ input_per_million = 1.0, output_per_million = 2.0 }}"
            )
        for name in price:
            _check_known(name, PriceSettings.__struct_fields__, f"{shown}.{model}.{name}")


def _check_known(
    name: str, known: tuple[str, ...], shown: str, later: frozenset[str] = frozenset()
) -> None:
    if name in later:
        raise ConfigError(f"{shown}: not supported in this version")
    if name not in known:
        raise ConfigError(f"{shown}: unknown setting; {_hint(name, known)}")


def _hint(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, tuple(known), n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"


def _fields(section: str) -> dict[str, object]:
    """Return the settings of a section and their types."""
    if not section:
        return dict.fromkeys((*SECTIONS, UPSTREAM))
    struct = UpstreamSettings if section == UPSTREAM else SECTIONS[section]
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def _choices(kind: object) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) is tuple:
        yield from _choices(get_args(kind)[0])
