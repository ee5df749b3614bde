"""``HEADSTART_SECTION__KEY`` variables: read as their settings, refused where misspelt."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import TYPE_CHECKING, get_origin

import msgspec

from headstart.config.names import (
    LISTS,
    NONE,
    check_choice,
    check_name,
    fields_of,
    may_be_none,
    table_type,
)
from headstart.config.wording import expectation
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

PREFIX = "HEADSTART_"
_EXAMPLES = {
    "upstream": (
        'such as [{"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY"}]'
    ),
    "route": 'such as [{"name": "faq", "match": {"model": "gpt-4o*"}, "max_error": 0.005}]',
}
_GUESSED = ("server", "cache")
"""Sections whose settings people name without the section."""
_KUBERNETES = re.compile(
    r"\w*(_service_(host|port)\w*=|port_\d+_(tcp|udp|sctp)\w*=|port=(tcp|udp|sctp)://)"
)
"""What Kubernetes sets for a service of that name: ``HEADSTART_PORT=tcp://10.0.0.1:8080``."""


def read_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    """Yield (dotted name, typed value). An empty variable counts as absent.

    Raises ConfigError that names the variable.
    """
    for variable, name, text in _ours(environ):
        steps = name.split("__")
        if steps[0] in LISTS:
            yield steps[0], _tables_from(variable, steps[0], text)
        elif len(steps) > 1:
            section, key = ".".join(steps[:-1]), steps[-1]
            for index, step in enumerate(steps):
                check_name(".".join(steps[:index]), step, variable)
            yield f"{section}.{key}", _typed(variable, section, key, text)


def check_single_names(environ: Mapping[str, str], named: Collection[str]) -> None:
    """Raise ConfigError for a variable without ``__`` that was meant for a setting.

    Others of the prefix may be the user's own; those that a setting names, in ``named``, are.
    """
    for variable, name, text in _ours(environ):
        own = "__" in name or name in LISTS or variable in named
        if own or _KUBERNETES.match(f"{name}={text}"):
            continue
        if (meant := _meant(name)) is not None:
            raise ConfigError(f"{variable}: unknown variable; did you mean {meant}?")


def _ours(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each variable of ours that is not empty: its name, what follows the prefix, text."""
    for variable in sorted(environ):
        text = environ[variable].strip()
        if variable.startswith(PREFIX) and text:
            yield variable, variable.removeprefix(PREFIX).lower(), text


def _meant(name: str) -> str | None:
    """Return the variable that a name stands for, if it begins like a section or is a setting."""
    section = name.partition("_")[0]
    if section.removesuffix("s") in LISTS:
        return f"{PREFIX}{section.removesuffix('s').upper()}"
    if section in fields_of(""):
        nearest = difflib.get_close_matches(name, _by_single_name(), n=1)
        alone = name == section or not nearest
        return f"{PREFIX}{section.upper()}__NAME" if alone else _by_single_name()[nearest[0]]
    known = (f"{PREFIX}{each}__{name}".upper() for each in _GUESSED if name in fields_of(each))
    return next(known, None)


@cache
def _by_single_name() -> dict[str, str]:
    """Return the variables of all settings, by their names with each ``__`` as ``_``."""

    def under(section: str) -> Iterator[str]:
        for name, kind in fields_of(section).items():
            place = f"{section}.{name}" if section else name
            if table_type(kind) is None:
                yield place
            elif name not in LISTS:
                yield from under(place)

    return {
        place.replace(".", "_"): PREFIX + place.replace(".", "__").upper() for place in under("")
    }


def _tables_from(variable: str, section: str, text: str) -> object:
    try:
        return msgspec.json.decode(text, type=list[dict[str, object]])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(
            f"{variable}: {PREFIX}{section.upper()} holds all of [[{section}]] as a JSON list of "
            f"objects, {_EXAMPLES[section]}"
        ) from error


def _typed(variable: str, section: str, key: str, text: str) -> object:
    """Read a variable's text as the setting's type; a list is separated by commas."""
    kind = fields_of(section)[key]
    if text == NONE and may_be_none(kind):
        return text
    if table_type(kind) is not None:
        raise ConfigError(f"{variable}: a table; set its keys, as in {variable}__NAME")
    value: object = text
    if get_origin(kind) is tuple:
        value = [] if text == NONE else [item.strip() for item in text.split(",") if item.strip()]
    check_choice(section, key, value, variable)
    try:
        return msgspec.to_builtins(msgspec.convert(value, kind, strict=False))
    except msgspec.ValidationError as error:
        message = str(error).partition(", got ")[0]  # a variable is always a text
        raise ConfigError(f"{variable}: {expectation(section, key, message)}") from error
