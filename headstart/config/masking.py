"""Secrets out of what is shown: reprs, ``config show``, the admin API, error messages."""

from __future__ import annotations

import re
from typing import Any

import msgspec

MASK = "***"
_URLS = frozenset({"store", "base_url", "proxy"})
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_USER_OR_QUERY = re.compile(r"(?<=//).*(?=@)|(?<=\?).*")


def masked_url(url: str) -> str:
    """Return the URL with user, password and query masked."""
    return _USER_OR_QUERY.sub(MASK, url)


def masked_variable(name: str) -> str:
    """Return a variable's name, masked unless in capitals: a key may stand in its place."""
    return name if _VARIABLE.fullmatch(name) else MASK


def masked_fields(section: msgspec.Struct) -> dict[str, Any]:
    """Return a section as plain data, with keys, header values and passwords masked."""
    return {name: _masked(name, getattr(section, name)) for name in section.__struct_fields__}


def _masked(name: str, value: object) -> object:
    if name == "client_keys" and isinstance(value, tuple):
        value = [MASK] * len(value)
    elif name.endswith("_env") and isinstance(value, tuple):
        value = [masked_variable(each) for each in value]
    elif name.endswith("_env") and isinstance(value, str):
        value = masked_variable(value)
    elif name == "headers" and isinstance(value, dict):
        value = dict.fromkeys(value, MASK)
    elif name in _URLS and isinstance(value, str):
        value = masked_url(value)
    elif isinstance(value, msgspec.Struct):
        value = masked_fields(value)
    elif isinstance(value, dict):
        value = {key: _masked("", inner) for key, inner in value.items()}
    elif isinstance(value, tuple):
        value = [_masked("", inner) for inner in value]
    return value
