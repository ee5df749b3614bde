"""Defaults, then the TOML file, then ``HEADSTART_SECTION__KEY`` variables, then overrides."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.config.checks import checked
from headstart.config.masking import masked_variable
from headstart.config.names import NONE, check_document, may_be_empty, may_be_none, table_type
from headstart.config.settings import Settings
from headstart.config.variables import check_single_names, read_variables
from headstart.config.wording import problem
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

KEY_FROM_ENVIRONMENT = "env:"


def load_settings(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Settings:
    """Return the checked settings.

    ``overrides`` maps dotted names to values, such as ``{"server.port": 8080}``; a value of None
    leaves the setting as it is; ``upstream`` and ``route`` take lists of tables. ``defaults``
    hold for settings that nothing else sets. Raises ConfigError that names the setting, what is
    wrong with it, and for a misspelt name the nearest valid one.
    """
    document = _read(path) if path is not None else {}
    check_document(document)
    for name, value in read_variables(environ):
        _put(document, name, value)
    for name, value in (overrides or {}).items():
        if value is not None:
            _put(document, name, value)
    for name, value in (defaults or {}).items():
        _put(document, name, value, replace=False)
    check_document(document)
    check_single_names(environ, frozenset(_texts(document)))
    _resolve_client_keys(document, environ)
    _resolve_none(Settings, document)
    try:
        settings = msgspec.convert(document, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(problem(error)) from error
    return checked(settings)


def override_cache(settings: Settings, overrides: Mapping[str, object]) -> Settings:
    """Return checked settings with other values of ``[cache]``. Raises ConfigError."""
    document = {"cache": dict(overrides)}
    check_document(document)
    _resolve_none(Settings, document)
    changed = msgspec.structs.replace(settings.cache, **document["cache"])
    return checked(msgspec.structs.replace(settings, cache=changed))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _put(document: dict[str, Any], name: str, value: object, *, replace: bool = True) -> None:
    *sections, key = name.split(".")
    table: object = document
    for section in sections:
        if isinstance(table, dict):
            table = table.setdefault(section, {})
    if isinstance(table, dict) and (replace or key not in table):
        table[key] = value  # what is no table msgspec refuses


def _texts(value: object) -> Iterator[str]:
    """Yield all texts of a document, among which are the variables that it names."""
    if isinstance(value, str):
        yield value.removeprefix(KEY_FROM_ENVIRONMENT)
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _resolve_client_keys(document: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Put the variable's value in the place of each ``env:NAME``."""
    server = document.get("server")
    keys = server.get("client_keys") if isinstance(server, dict) else None
    if not isinstance(server, dict) or not isinstance(keys, list | tuple):
        return
    resolved = list(keys)
    for index, key in enumerate(keys):
        if isinstance(key, str) and key.startswith(KEY_FROM_ENVIRONMENT):
            variable = key.removeprefix(KEY_FROM_ENVIRONMENT)
            resolved[index] = environ.get(variable)
            if not resolved[index]:
                shown = masked_variable(variable)
                raise ConfigError(f"server.client_keys[{index}]: {shown} is not set")
    server["client_keys"] = resolved


def _resolve_none(struct: type[msgspec.Struct], table: object) -> None:
    """Read ``"none"`` as no value where a setting allows it."""
    if isinstance(table, list | tuple):
        for each in table:
            _resolve_none(struct, each)
    if not isinstance(table, dict):
        return
    for field in msgspec.structs.fields(struct):
        value, inner = table.get(field.name), table_type(field.type)
        if value == NONE and may_be_none(field.type):
            table[field.name] = () if may_be_empty(field.type) else None
        elif inner is not None:
            _resolve_none(inner, value)
