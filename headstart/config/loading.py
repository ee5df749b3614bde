"""Loads settings from defaults, the TOML file, the environment and overrides; the later one wins.

``load_settings`` puts all of them into one *document*, a dict of tables as TOML has them, and
converts the document into ``Settings``. A variable is named like its setting:

    HEADSTART_CACHE__AUDIT__MODE=off      cache.audit.mode = "off"
    HEADSTART_UPSTREAM=[{"name": "a"}]    all of [[upstream]], as JSON

All problems are collected, so that the user sees them at once.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from headstart.config.checks import checked
from headstart.config.names import (
    LISTS,
    NONE,
    check_choice,
    check_name,
    expectation,
    may_be_empty,
    may_be_none,
    name_problems,
    problem,
    read_share,
    settings_of,
    table_type,
    type_problems,
)
from headstart.errors import ConfigError
from headstart.settings import ServerSettings, Settings, masked_variable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")
PREFIX = "HEADSTART_"
KEY_FROM_ENVIRONMENT = "env:"
"""The beginning of a client key that names a variable, such as ``env:TEAM_A_KEY``."""
PROFILES: dict[object, dict[str, object]] = {
    "serverless": {"cache.store": "memory:", "encoder.lazy": True, "encoder.threads": 1},
    "edge": {
        "cache.mode": "exact-only",
        "cache.hot_bytes": 4 * 2**20,
        "cache.max_entries": 20_000,
        "cache.max_bytes": 64 * 2**20,
    },
}
"""The defaults of ``server.profile``, for settings without another value."""


def load_settings(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
    *,
    needs_client_keys: bool = True,
) -> Settings:
    """Return the checked settings.

    ``overrides`` maps dotted names to values, such as ``{"server.port": 8080}``; a value of None
    leaves the setting as it is; ``upstream`` and ``route`` take lists of tables. ``defaults``
    are used for settings without another value. A command that only reads a store does not need
    the variables of client keys, which its shell may lack.

    Raises ConfigError with a line for each problem: the setting or the variable, what is wrong with
    it, and for a misspelt name the nearest valid one. Contradictions between settings are told as
    soon as all of the file's names and types are right.
    """
    document = _read(path) if path is not None else {}
    variables = read_variables(environ)
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    for name, value in {**variables.values, **given}.items():
        _put(document, name, value)
    for name, value in {**(defaults or {}), **_profile(document)}.items():
        _put(document, name, value, replace=False)
    problems = [
        *variables.problems,
        *_single_name_problems(environ, frozenset(_texts(document))),
        *_resolve_client_keys(document, environ, needed=needs_client_keys),
    ]
    wrong_names = name_problems(document)  # before texts such as "none" are replaced
    _resolve_texts(Settings, document)
    try:
        settings = checked(msgspec.convert(document, Settings))
    except msgspec.ValidationError as error:
        # A setting with a wrong name or choice has no further problem.
        places = tuple(each.partition(": ")[0] for each in wrong_names)
        wrong_types = [each for each in type_problems(document) if not each.startswith(places)]
        problems += [*wrong_names, *wrong_types] or [problem(error)]
    except ConfigError as error:
        problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return settings


def load_address(path: Path | None, environ: Mapping[str, str]) -> ServerSettings:
    """Return settings with only the values that a client needs to find the server.

    These are ``server.host``, ``server.port`` and ``server.admin_token_env``. Errors in the rest of
    the file do not matter to the client. Raises ConfigError.
    """
    table = _read(path).get("server") if path is not None else None
    own = table if isinstance(table, dict) else {}
    names = ("host", "port", "admin_token_env")
    variables = {name: f"{PREFIX}SERVER__{name.upper()}" for name in names}
    named = {each: environ[each] for each in variables.values() if each in environ}
    defaults = {f"server.{name}": own[name] for name in variables if name in own}
    return load_settings(None, named, defaults=defaults).server


def override_cache(settings: Settings, overrides: Mapping[str, object]) -> Settings:
    """Return checked settings with other values of ``[cache]``. Raises ConfigError."""
    document = {"cache": dict(overrides)}
    if problems := name_problems(document):
        raise ConfigError("\n".join(problems))
    _resolve_texts(Settings, document)
    changed = msgspec.structs.replace(settings.cache, **document["cache"])
    return checked(msgspec.structs.replace(settings, cache=changed))


# --- the document ---------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    """Return the document of a TOML file. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{path}: {why}; name another file (--config)") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        hint = "; a text needs quotation marks" if str(error).startswith("Invalid value") else ""
        raise ConfigError(f"{path}: not TOML: {error}{hint}") from error


def _put(document: dict[str, Any], name: str, value: object, *, replace: bool = True) -> None:
    """Set a setting by its dotted name. Without ``replace``, a value that is there stays."""
    *sections, key = name.split(".")
    table: object = document
    for section in sections:
        if isinstance(table, dict):
            table = table.setdefault(section, {})
    if isinstance(table, dict) and (replace or key not in table):
        table[key] = value  # msgspec reports a section that is not a table


def _profile(document: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the defaults of the profile.

    A wrong name has none, and the check of the settings reports it.
    """
    table = document.get("server")
    name = table.get("profile") if isinstance(table, dict) else None
    return PROFILES.get(name, {}) if isinstance(name, str) else {}


def _texts(value: object) -> Iterator[str]:
    """Yield all texts of a document. Some of them are names of variables."""
    if isinstance(value, str):
        yield value.removeprefix(KEY_FROM_ENVIRONMENT)
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _resolve_client_keys(
    document: dict[str, Any], environ: Mapping[str, str], *, needed: bool
) -> list[str]:
    """Replace each ``env:NAME`` by the value of the variable.

    Return a problem for each variable that is not set; if they are not ``needed``, there is none.
    """
    server = document.get("server")
    keys = server.get("client_keys") if isinstance(server, dict) else None
    if not isinstance(server, dict) or not isinstance(keys, list | tuple | dict):
        return []
    problems: list[str] = []
    resolved = dict(keys.items() if isinstance(keys, dict) else enumerate(keys))
    for place, key in resolved.items():
        if isinstance(key, str) and key.startswith(KEY_FROM_ENVIRONMENT):
            variable = key.removeprefix(KEY_FROM_ENVIRONMENT)
            resolved[place] = environ.get(variable) or key
            if needed and not environ.get(variable):
                shown = masked_variable(variable)
                problems.append(f"server.client_keys[{place}]: the variable {shown} is not set")
    server["client_keys"] = resolved if isinstance(keys, dict) else list(resolved.values())
    return problems


def _resolve_texts(struct: type[msgspec.Struct], table: object) -> None:
    """Replace ``"none"`` by None if a setting may have no value, and ``"2%"`` by a share."""
    if isinstance(table, list | tuple):
        for each in table:
            _resolve_texts(struct, each)
    if not isinstance(table, dict):
        return
    for field in msgspec.structs.fields(struct):
        value, inner = table.get(field.name), table_type(field.type)
        if value == NONE and may_be_none(field.type):
            table[field.name] = () if may_be_empty(field.type) else None
        elif field.name in table and inner is None:
            table[field.name] = read_share(field.type, value)
        elif inner is not None:
            if isinstance(value, dict) and get_origin(field.type) is dict:
                value = list(value.values())  # tables by their names
            _resolve_texts(inner, value)


# --- variables ------------------------------------------------------------------------------------

_EXAMPLES = {
    "upstream": (
        'such as [{"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY"}]'
    ),
    "route": 'such as [{"name": "faq", "match": {"model": "gpt-4o*"}, "max_error": 0.005}]',
}
_GUESSED = ("server", "cache")
"""The sections that people often leave out of a variable's name."""
_KUBERNETES = re.compile(
    r"\w*(_service_(host|port)\w*=|port_\d+_(tcp|udp|sctp)\w*=|port=(tcp|udp|sctp)://)"
)
"""Matches variables that Kubernetes sets for a service with our name, such as
``HEADSTART_PORT=tcp://10.0.0.1:8080``."""


class Variables(NamedTuple):
    """The values of variables by the dotted names of settings, and a problem for each other one."""

    values: dict[str, object]
    problems: list[str]


def read_variables(environ: Mapping[str, str]) -> Variables:
    """Read the variables of settings as their settings' types. An empty one counts as absent."""
    found = Variables({}, [])
    for variable, name, text in _own_variables(environ):
        try:
            found.values.update(_read_variable(variable, name.split("__"), text))
        except ConfigError as error:
            found.problems.append(str(error))
    return found


def _own_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the variables with our prefix that are not empty: name, name without prefix, text."""
    for variable in sorted(environ):
        text = environ[variable].strip()
        if variable.startswith(PREFIX) and text:
            yield variable, variable.removeprefix(PREFIX).lower(), text


def _read_variable(variable: str, steps: list[str], text: str) -> dict[str, object]:
    """Return the value of a variable by its setting's name. Raises ConfigError.

    ``steps`` are the parts of the name, such as ``["cache", "audit", "mode"]``. A name of one step
    is no setting (``_single_name_problems``), except for a list of tables.
    """
    *sections, key = steps
    if steps[0] in LISTS:
        section = steps[0]
        whole = f"{PREFIX}{section.upper()}"
        wanted = f"holds all of [[{section}]] as a JSON list of objects, {_EXAMPLES[section]}"
        wrong = f"{variable}: {'it' if variable == whole else whole} {wanted}"
        return {section: _from_json(text, list[dict[str, object]], wrong)}
    if not sections:
        return {}
    for index, step in enumerate(steps):
        check_name(".".join(steps[:index]), step, variable)
    section = ".".join(sections)
    return {f"{section}.{key}": _typed(variable, section, key, text)}


def _typed(variable: str, section: str, key: str, text: str) -> object:
    """Read a variable's text as the setting's type.

    A list is separated by commas, or in JSON. If a setting also takes names, a JSON object gives
    them.
    """
    kind, no_object = settings_of(section)[key], f"{variable}: no JSON object of names and values"
    if text == NONE and may_be_none(kind):
        return text  # ``_resolve_texts`` replaces it
    if text.startswith("{") and get_origin(kind) is dict:
        return _from_json(text, dict[str, object], no_object)
    if table_type(kind) is not None:
        raise ConfigError(f"{variable}: a table; set one of its settings, {variable}__NAME")
    value: object = read_share(kind, text)
    if text.startswith("{") and any(get_origin(each) is dict for each in get_args(kind)):
        value = _from_json(text, dict[str, object], no_object)
    elif may_be_empty(kind):
        value = _items(text)
    check_choice(section, key, value, variable)
    try:
        return msgspec.to_builtins(msgspec.convert(value, kind, strict=False))
    except msgspec.ValidationError as error:
        message = str(error).partition(", got ")[0]  # what was given is always a text
        raise ConfigError(f"{variable}: {expectation(section, key, message)}") from error


def _items(text: str) -> list[object]:
    """Return the items of a list that is written in JSON or with commas."""
    if text.startswith("["):  # also "[::1]", which is no JSON
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=list[object])
    return [] if text == NONE else [item.strip() for item in text.split(",") if item.strip()]


def _from_json(text: str, type: type[T], wrong: str) -> T:
    """Return the value of a JSON text. Raises ConfigError with the message ``wrong``."""
    try:
        return msgspec.json.decode(text, type=type)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(wrong) from error


def _single_name_problems(environ: Mapping[str, str], named: Collection[str]) -> Iterator[str]:
    """Yield a problem for each variable without ``__`` that was probably meant for a setting.

    Other variables with our prefix may belong to the user. Those that a setting names (``named``)
    certainly do.
    """
    for variable, name, text in _own_variables(environ):
        own = "__" in name or name in LISTS or variable in named
        if own or _KUBERNETES.match(f"{name}={text}"):
            continue
        if (meant := _intended(name)) is not None:
            yield f"{variable}: unknown variable; did you mean {meant}?"


def _intended(name: str) -> str | None:
    """Return the variable that the user probably meant, if the name resembles a setting.

    For example, ``HEADSTART_SERVER__PORT`` for ``server_port`` and for ``port``.
    """
    section = name.partition("_")[0]
    if section.removesuffix("s") in LISTS:
        return f"{PREFIX}{section.removesuffix('s').upper()}"
    if section in settings_of(""):
        nearest = difflib.get_close_matches(name, _by_single_name(), n=1)
        if name == section or not nearest:
            return f"{PREFIX}{section.upper()}__NAME"
        return _by_single_name()[nearest[0]]
    known = (f"{PREFIX}{each}__{name}".upper() for each in _GUESSED if name in settings_of(each))
    return next(known, None)


@cache
def _by_single_name() -> dict[str, str]:
    """Return the variables of all settings, by their names with each ``__`` as ``_``."""

    def under(section: str) -> Iterator[str]:
        for name, kind in settings_of(section).items():
            place = f"{section}.{name}" if section else name
            if table_type(kind) is None:
                yield place
            elif name not in LISTS:
                yield from under(place)

    return {
        place.replace(".", "_"): PREFIX + place.replace(".", "__").upper() for place in under("")
    }
