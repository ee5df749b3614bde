"""May an answer be stored by what its status and headers say, and for how long?

These are the rules of RFC 9111 for a shared cache, read for a cache whose owner has named each
path. ``docs/endpoints.md`` tells where they are stricter or laxer, and why.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

from headstart.policies.directives import delta_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headstart.types import Headers

_AS_THEY_COME = frozenset((200, 201, 203))
"""Complete answers that are stored without a word on how long they are fresh."""
_NO_CONTENT = frozenset((204, 205))
_NEVER = frozenset((206, 226))
"""A part of an answer, and changes to an answer that the client has."""
_REFUSING = frozenset((b"no-store", b"no-cache", b"private"))
_DIRECTIVE = re.compile(rb'([^\s,=;"]+)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*)))?')


class Storing(NamedTuple):
    """Whether an answer may be stored: why not, or for how many seconds at most."""

    refusal: str | None = None
    fresh_s: float | None = None
    """None: the answer does not say."""


def judge_response(
    status: int, headers: Headers, *, keyed: Callable[[bytes], bool], custom: bool, now: float
) -> Storing:
    """Judge an app's answer before its body has come.

    ``keyed`` tells whether a request header, in lower case, is in the key or the scope.
    ``custom``: it answers a path that has no dialect; a dialect's answers have status 200.
    ``now`` is in Unix seconds.
    """
    directives = _directives(headers)
    fresh_s = _fresh_s(headers, directives, now)
    refusal = (
        _refuse_status(status, directives, fresh_s, custom=custom)
        or _refuse_headers(headers, keyed)
        or _refuse_directives(headers, directives)
    )
    if refusal is None and fresh_s is not None and fresh_s <= 0:
        refusal = "expired"
    return Storing(refusal) if refusal is not None else Storing(None, fresh_s)


def _refuse_status(
    status: int, directives: Mapping[bytes, list[bytes]], fresh_s: float | None, *, custom: bool
) -> str | None:
    if not custom:
        return None if status == 200 else "status"
    if status in _NO_CONTENT:
        return "no-content"
    if status in _AS_THEY_COME:
        return None
    explicit = fresh_s is not None or b"public" in directives
    if not 200 <= status < 300 or status in _NEVER or not explicit:
        return "status"
    # Of a status that nobody here understands, the app may ask for just that.
    return "cache-control" if b"must-understand" in directives else None


def _refuse_headers(headers: Headers, keyed: Callable[[bytes], bool]) -> str | None:
    for name, value in headers:
        if name == b"set-cookie":
            return "set-cookie"
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            return "content-encoding"
        if name == b"vary":
            varies = {word.strip().lower() for word in value.split(b",")}
            # The app is asked for a plain answer, so that all get the same encoding.
            if b"*" in varies or not all(map(keyed, varies - {b"", b"accept-encoding"})):
                return "vary"
    return None


def _refuse_directives(headers: Headers, directives: Mapping[bytes, list[bytes]]) -> str | None:
    if not _REFUSING.isdisjoint(directives):
        return "cache-control"
    if not directives and any(n == b"pragma" and b"no-cache" in v.lower() for n, v in headers):
        return "cache-control"  # how answers said it to HTTP/1.0
    return None


def _directives(headers: Headers) -> dict[bytes, list[bytes]]:
    """Return the directives of ``Cache-Control`` with the values of each."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name == b"cache-control":
            for directive in _DIRECTIVE.finditer(value):
                given = directive[2] if directive[2] is not None else directive[3]
                found.setdefault(directive[1].lower(), []).append(given or b"")
    return found


def _fresh_s(headers: Headers, directives: Mapping[bytes, list[bytes]], now: float) -> float | None:
    """Return how long the answer is fresh from now on, None if it does not say (section 4.2).

    What cannot be read is stale, and of two values that differ the smaller one counts.
    """
    age_s, dated = _age_s(headers, now)
    for name in (b"s-maxage", b"max-age"):
        if name in directives:
            return min(map(delta_seconds, directives[name])) - age_s
    expires = [_moment(value) for name, value in headers if name == b"expires"]
    if not expires:
        return None
    ends = [0.0 if end is None else end for end in expires]
    return min(ends) - dated - age_s


def _age_s(headers: Headers, now: float) -> tuple[float, float]:
    """Return how old the answer is already, and when it was made (section 4.2.3)."""
    ages = [delta_seconds(value.strip()) for name, value in headers if name == b"age"]
    dates = [_moment(value) for name, value in headers if name == b"date"]
    dated = next((date for date in dates if date is not None), now)
    return max([0.0, now - dated, *ages]), dated


def _moment(value: bytes) -> float | None:
    """Return an HTTP date in Unix seconds, None if it is none."""
    try:
        return parsedate_to_datetime(value.decode("latin-1")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
