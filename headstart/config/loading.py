"""Defaults, then the TOML file, then ``HEADSTART_SECTION__KEY`` variables, then overrides."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, get_origin

import msgspec

from headstart.config.checks import checked, problem
from headstart.config.names import (
    SECTIONS,
    UPSTREAM,
    check_choice,
    check_document,
    check_name,
    optional_settings,
)
from headstart.config.settings import Settings
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PREFIX = "HEADSTART_"
KEY_FROM_ENVIRONMENT = "env:"
NONE = "none"


def load_settings(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Return the checked settings.

    ``overrides`` maps dotted names to values, such as ``{"server.port": 8080}``; a value of None
    leaves the setting as it is, and ``upstream`` takes a list of tables. Raises ConfigError that
    names the setting, what is wrong with it, and for a misspelt name the nearest valid one.
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
    _resolve_none(document)
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
        section, separator, key = variable.removeprefix(PREFIX).lower().partition("__")
        if section == UPSTREAM:
            yield UPSTREAM, _upstreams_from(variable, text)
        elif separator:
            check_name("", section, variable)
            check_name(section, key, variable)
            yield f"{section}.{key}", _typed(variable, section, key, text)


def _upstreams_from(variable: str, text: str) -> object:
    try:
        return msgspec.json.decode(text, type=list[dict[str, object]])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(
            f"{variable}: upstreams are a JSON list in HEADSTART_UPSTREAM, such as "
            '[{"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY"}]'
        ) from error


def _typed(variable: str, section: str, key: str, text: str) -> object:
    """Read a variable's text as the setting's type; a list is separated by commas."""
    if text == NONE and key in optional_settings(section):
        return text
    kind = {each.name: each.type for each in msgspec.structs.fields(SECTIONS[section])}[key]
    value: object = text
    if get_origin(kind) is tuple:
        value = [] if text == NONE else [item.strip() for item in text.split(",") if item.strip()]
    check_choice(section, key, value, variable)
    try:
        return msgspec.to_builtins(msgspec.convert(value, kind, strict=False))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{variable}: {problem(error)}") from error


def _put(document: dict[str, Any], name: str, value: object) -> None:
    section, dot, key = name.partition(".")
    if not dot:
        document[section] = value
        return
    table = document.setdefault(section, {})
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


def _resolve_none(document: dict[str, Any]) -> None:
    """Read ``"none"`` as no value where a setting allows it: TOML cannot write null."""
    for section in SECTIONS:
        table = document.get(section)
        if not isinstance(table, dict):
            continue
        for name in optional_settings(section):
            if table.get(name) == NONE:
                table[name] = None
