"""Settings: ``headstart.toml``, then ``HEADSTART_SECTION__KEY``, then the caller's overrides.

Every key is documented in ``docs/configuration.md``. Unknown keys are refused with the nearest
valid name; a value out of bounds names its setting.
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import msgspec

from headstart.errors import ConfigError
from headstart.settings import SECTIONS, Settings
from headstart.settings_checks import checks, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PREFIX = "HEADSTART_"
_LATER = {
    "cache.max_error": "this version matches by a static cache.threshold",
    "cache.confidence": "this version matches by a static cache.threshold",
    "cache.error_of": "this version matches by a static cache.threshold",
    "cache.shadow_first": "shadow mode is not in this version",
    "compression": "compression is not in this version",
    "output": "output budgets are not in this version",
    "record": "the request log is not in this version",
    "route": "routes are not in this version: the first upstream that names the model is used",
    "upstream.preset": "presets are not in this version: give base_url and api_key_env",
    "upstream.cancels_billing": "races are not in this version",
}
"""Keys of the design that must not be ignored silently before they work."""


def load_settings(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Read, merge and validate. Raises ConfigError, which names the setting and the fix."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
    values = _merge(values, _from_environ(environ))
    return _build(_merge(values, overrides or {}))


def override(settings: Settings, overrides: Mapping[str, Any]) -> Settings:
    """Return settings with some keys replaced. Raises ConfigError."""
    return _build(_merge(msgspec.to_builtins(settings), overrides))


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read ``HEADSTART_CACHE__THRESHOLD=0.92``; lists are comma-separated or JSON."""
    values: dict[str, Any] = {}
    sections = {name: struct for name, struct in SECTIONS.items() if name != "upstream"}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or "__" not in variable:
            continue
        section, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        struct = sections.get(section)
        if struct is None:
            raise ConfigError(f"{variable}: no section {section!r}; {nearest(section, sections)}")
        fields = {field.name: field for field in msgspec.structs.fields(struct)}
        if key not in fields:
            _refuse_later(f"{section}.{key}")
            raise ConfigError(f"{variable}: no setting {section}.{key}; {nearest(key, fields)}")
        values.setdefault(section, {})[key] = _typed(variable, text, fields[key].type)
    return values


def _typed(variable: str, text: str, kind: Any) -> Any:
    if kind == tuple[str, ...] and not text.lstrip().startswith("["):
        return [word.strip() for word in text.split(",") if word.strip()]
    source: Any = text
    if kind == tuple[str, ...]:
        source = msgspec.json.decode(text)
    try:
        return msgspec.to_builtins(msgspec.convert(source, kind, strict=False))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{variable}: {error}") from error


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge sections key by key; anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _merge(known, value) if both and known is not None else value
    return merged


def _build(values: Mapping[str, Any]) -> Settings:
    _refuse_unknown(values)
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(_readable(str(error))) from error
    for setting, fine, need in checks(settings):
        if not fine:
            raise ConfigError(f"{setting} {need}")
    return settings


def _readable(message: str) -> str:
    """Turn msgspec's ``… - at `$.cache.mode``` into the setting and what it must be."""
    text, separator, path = message.partition(" - at `$.")
    if not separator:
        return message
    setting = path.rstrip("`")
    section, _, key = re.sub(r"\[.*?\]", "", setting).partition(".")
    for field in msgspec.structs.fields(SECTIONS[section]) if section in SECTIONS else ():
        if field.name == key and get_origin(field.type) is Literal:
            text = "must be " + " or ".join(map(repr, get_args(field.type)))
    return f"{setting}: {text}"


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    for section, content in values.items():
        if section not in SECTIONS:
            _refuse_later(section)
            raise ConfigError(f"unknown section [{section}]; {nearest(section, SECTIONS)}")
        names = [field.name for field in msgspec.structs.fields(SECTIONS[section])]
        tables = content if isinstance(content, (list, tuple)) else [content]
        for table in tables:
            for key in table if isinstance(table, dict) else ():
                if key not in names:
                    _refuse_later(f"{section}.{key}")
                    raise ConfigError(f"unknown setting {section}.{key}; {nearest(key, names)}")


def _refuse_later(name: str) -> None:
    if name in _LATER:
        raise ConfigError(f"{name} is not supported in this version: {_LATER[name]}")


def discover_upstreams(environ: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return upstreams for the providers whose key variables are set, and what was found."""
    text = resources.files("headstart").joinpath("providers.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    upstreams: list[dict[str, Any]] = []
    notes: list[str] = []
    for name, entry in table.items():
        variable = entry.get("variable") if isinstance(entry, dict) else None
        if variable is not None and environ.get(variable):
            fields = {"name": name, "base_url": entry["base_url"], "api_key_env": variable}
            upstreams.append(fields)
            notes.append(f"found {variable}: upstream {name} at {entry['base_url']}")
    notes += [
        f"found {variable}: its dialect is not supported in this version"
        for variable in table["unsupported"]["variables"]
        if environ.get(variable)
    ]
    return upstreams, notes
