"""Finds the route rule for a request, and the error target and learning domain of its matches."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

from headstart.decisions import MatchContext
from headstart.errors import RequestError

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from headstart.types import Headers

REPEAT_WINDOW_S = 120.0
"""Default time within which a repeat asks for another answer. It is long enough to read an answer
and reject it. A caller that comes back later has not rejected it."""
MAX_ERROR_HEADER = b"x-headstart-max-error"
ROUTE_HEADER = b"x-headstart-route"


@dataclass(frozen=True)
class RouteRule:
    """One ``[[route]]``: shell patterns of the requests that it fits, and its settings for them."""

    name: str
    model: str = "*"
    path: str = "*"
    headers: tuple[tuple[bytes, str], ...] = ()
    """Lower-case names and patterns of values. An absent header fits no pattern."""
    max_error: float | None = None
    query: re.Pattern[str] | None = None
    """Its group ``query`` is the question in the last user text."""
    semantic: bool = True
    cached_tools: tuple[str, ...] | None = None
    """Patterns of the tools whose calls may be replayed; None: the patterns of all routes."""
    never_stored: tuple[re.Pattern[str], ...] | None = None
    """Texts with a match are not stored; None: the expressions of all routes."""
    ttl_s: float | None = None
    repeat_window_s: float | None = None
    """A caller that repeats a request within this time after its answer gets a fresh one; None:
    never."""

    def fits(self, *, model: str, path: str, headers: Headers) -> bool:
        """Tell whether this rule fits such a request."""
        return (
            fnmatchcase(model, self.model)
            and fnmatchcase(path, self.path)
            and all(
                any(
                    name == wanted and fnmatchcase(decode_header(value), glob)
                    for name, value in headers
                )
                for wanted, glob in self.headers
            )
        )


NO_RULE = RouteRule("")


def first_rule(rules: Sequence[RouteRule], *, model: str, path: str, headers: Headers) -> RouteRule:
    """Return the rule that ``x-headstart-route`` names, else the first that fits, else NO_RULE.

    Raises RequestError for a name that no rule has.
    """
    for name, value in headers:
        if name == ROUTE_HEADER:
            return _named(rules, decode_header(value).strip())
    for rule in rules:
        if rule.fits(model=model, path=path, headers=headers):
            return rule
    return NO_RULE


def _named(rules: Sequence[RouteRule], name: str) -> RouteRule:
    by_name = {rule.name: rule for rule in reversed(rules)}
    if name not in by_name:
        known = ", ".join(rule.name for rule in rules) or "none"
        raise RequestError(f"x-headstart-route: there is no route {name!r}; there is: {known}")
    return by_name[name]


def requested_max_error(headers: Headers) -> float | None:
    """Return the share of wrong hits that ``x-headstart-max-error`` accepts: 0.01 or 1%.

    0 accepts only exact repeats. Raises RequestError for a value that is not a share below 1.
    """
    values = [value for name, value in headers if name == MAX_ERROR_HEADER]
    return min(map(_share, values), default=None)


@lru_cache(maxsize=4096)
def match_context(
    parties: tuple[str, ...],
    targets: tuple[float | None, ...],
    learning: str = "",
    principal: str = "",
    tenant: str = "",
) -> MatchContext:
    """Return the context of a request's match.

    It learns separately for each combination of ``parties``: the scope, the path and the rule. The
    smallest target counts. ``learning`` names the encoder and the guards: with others, another
    domain learns.
    """
    stated = [target for target in targets if target is not None]
    return MatchContext(
        domain=sha256("\0".join((*parties, learning)).encode()).hexdigest()[:16],
        max_error=min(stated, default=None),
        principal=principal,
        tenant=tenant,
    )


def decode_header(value: bytes) -> str:
    """Decode the value of a header as UTF-8, or else as Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def parse_share(text: str) -> float | None:
    """Return the number of a share such as ``0.01``, ``.01`` or ``1%``; None for another text."""
    text = text.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def _share(value: bytes) -> float:
    share = parse_share(value.decode("latin-1"))
    if share is None or not 0 <= share < 1:
        raise RequestError(
            f"{MAX_ERROR_HEADER.decode()}: {value.decode('latin-1')!r} is not a share of wrong "
            "answers from 0 (exact repeats only) to below 1, such as 0.01 or 1%"
        )
    return share
