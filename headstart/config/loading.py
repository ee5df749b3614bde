"""Defaults, then the TOML file, then ``HEADSTART_SECTION__KEY`` variables, then overrides."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, get_origin

import msgspec

from headstart.config.checks import checked, problem
from headstart.config.names import (
    LISTS,
    NONE,
    check_choice,
    check_document,
    check_name,
    fields_of,
    may_be_empty,
    may_be_none,
    table_type,
)
from headstart.config.settings import Settings
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PREFIX = "HEADSTART_"
KEY_FROM_ENVIRONMENT = "env:"
_EXAMPLES = {
    "upstream": (
        'such as [{"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY"}]'
    ),
    "route": 'such as [{"name": "faq", "match": {"model": "gpt-4o*"}, "max_error": 0.005}]',
}


def load_settings(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Return the checked settings.

    ``overrides`` maps dotted names to values, such as ``{"server.port": 8080}``; a value of None
    leaves the setting as it is; ``upstream`` and ``route`` take lists of tables. Raises
    ConfigError that names the setting, what is wrong with it, and for a misspelt name the
    nearest valid one.
    """
    document = _read(path) if path is not None else {}
    check_document(document)
    for name, value in _variables(environ):
        _put(document, name, value)
    for name, value in (overrides or {}).items():
        if value is not None:
            _put(document, name, value)
    check_document(document)
    _resolve_client_keys(document, environ)
    _resolve_none(Settings, document)
    try:
        settings = msgspec.convert(document, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(problem(error)) from error
    return checked(settings)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    """Yield (dotted name, typed value). An empty variable counts as absent."""
    for variable in sorted(environ):
        text = environ[variable].strip()
        if not variable.startswith(PREFIX) or not text:
            continue
        steps = variable.removeprefix(PREFIX).lower().split("__")
        if steps[0] in LISTS:
            yield steps[0], _tables_from(variable, steps[0], text)
        elif len(steps) > 1:
            section, key = ".".join(steps[:-1]), steps[-1]
            for index, step in enumerate(steps):
                check_name(".".join(steps[:index]), step, variable)
            yield f"{section}.{key}", _typed(variable, section, key, text)


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
        raise ConfigError(f"{variable}: {problem(error)}") from error


def _put(document: dict[str, Any], name: str, value: object) -> None:
    *sections, key = name.split(".")
    table: object = document
    for section in sections:
        if isinstance(table, dict):
            table = table.setdefault(section, {})
    if isinstance(table, dict):  # else msgspec says what is wrong with it
        table[key] = value


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
                raise ConfigError(f"server.client_keys[{index}]: {variable} is not set")
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
