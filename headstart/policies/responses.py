"""May a wrapped app's answer be stored? Its own headers have the last word."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from headstart.types import Headers

_ALWAYS_KEYED = frozenset((b"authorization", b"cookie", b"accept-encoding", b"origin"))
"""In the scope already, or without influence on a JSON or event-stream answer."""


def refuse_app_response(headers: Headers, keyed: Collection[bytes]) -> str | None:
    """Return why the answer must not be stored, or None. ``keyed`` names are in the key."""
    for name, value in headers:
        if name == b"set-cookie":
            return "set-cookie"
        if name == b"cache-control":
            words = {word.strip().lower().partition(b"=")[0] for word in value.split(b",")}
            if words & {b"private", b"no-store", b"no-cache"}:
                return "cache-control"
        if name == b"vary":
            varies = {word.strip().lower() for word in value.split(b",")}
            if varies - _ALWAYS_KEYED - set(keyed):
                return "vary"
    return None
