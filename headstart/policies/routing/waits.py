"""When to ask again: the ways in which providers write times into headers and messages."""

from __future__ import annotations

import math
import re
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headstart.types import Headers

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_EPOCH_S = 1e9
"""Larger numbers are points in time, not durations."""
_EPOCH_MS = 1e12
_WINDOWS_S = {
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "month": 30 * 86400.0,
}
_HEADER = re.compile(rb"(?:x-|anthropic-)?(ratelimit|ratelimitbysize|tokenlimit)-([a-z0-9-]{1,60})")
_FIELDS = ("limit", "remaining", "reset")
_MESSAGE_WAIT = re.compile(r"(?:try again|retry) (?:in|after) ((?:[\d.]+(?:ms|[smhd]))+)")
_MAX_WINDOWS = 16
"""No provider names more; a hostile one could name thousands."""


class Window(NamedTuple):
    """One limit as a provider's headers describe it; None where they do not say."""

    name: str
    """What it counts and over what time, such as ``tokens-minute``."""
    limit: float | None
    remaining: float | None
    reset_s: float | None
    """Until it is whole again."""

    @property
    def counts_tokens(self) -> bool:
        return "token" in self.name

    @property
    def partial(self) -> bool:
        """It counts the tokens of one direction only."""
        return any(word in self.name for word in ("input", "output", "prompt", "generated"))

    @property
    def length_s(self) -> float:
        """Its length by its name; a minute where that does not tell."""
        words = self.name.split("-")
        if words[-1] not in _WINDOWS_S:
            return 60.0
        times = float(words[-2]) if len(words) > 1 and words[-2].isdecimal() else 1.0
        return max(times, 1.0) * _WINDOWS_S[words[-1]]


def duration_s(text: str, unix: float) -> float | None:
    """Read ``12ms``, ``6m0s``, ``59.7``, a Unix time or an RFC 3339 time; None: none of these.

    ``unix`` is now, in Unix seconds. Never negative.
    """
    text = text.strip()
    if text[-1:] in _UNITS:
        return _units_s(text)
    number = _number(text)
    if number is None:
        return _units_s(text.lower()) if _starts_unit(text) else _moment_s(text, unix)
    if number >= _EPOCH_MS:
        number /= 1000
    return max(0.0, number - unix if number >= _EPOCH_S else number)


def retry_after_s(headers: Headers, unix: float) -> float | None:
    """Return what ``retry-after-ms``, ``x-ms-retry-after-ms`` or ``retry-after`` asks for.

    ``retry-after`` is seconds or an HTTP date (RFC 9110, 10.2.3).
    """
    found = dict(reversed(headers))
    for name in (b"retry-after-ms", b"x-ms-retry-after-ms"):
        milliseconds = _number(found.get(name, b"").decode("latin-1"))
        if milliseconds is not None and milliseconds >= 0:
            return milliseconds / 1000
    value = found.get(b"retry-after", b"").decode("latin-1").strip()
    if not value:
        return None
    seconds = duration_s(value, unix)
    return _date_s(value, unix) if seconds is None else seconds


def message_wait_s(text: str) -> float | None:
    """Return the wait that an error message names ("Please try again in 6m0s"), or None."""
    found = _MESSAGE_WAIT.search(text)
    return _units_s(found[1].rstrip(".")) if found else None


def exhausted_until_s(headers: Headers, unix: float) -> float | None:
    """Return when the last used up limit among ``headers`` is whole again, or None."""
    waits = [
        window.reset_s
        for window in windows(headers, unix)
        if window.remaining is not None and window.remaining < 1 and window.reset_s
    ]
    return max(waits, default=None)


def windows(headers: Headers, unix: float) -> list[Window]:
    """Return the limits that ``headers`` describe, of whichever provider."""
    found: dict[str, dict[str, float]] = {}
    for header, value in headers:
        part = _part_of(header)
        if part is None:
            continue
        name, field = part
        number = _read_field(field, value.decode("latin-1"), unix)
        if number is not None and (name in found or len(found) < _MAX_WINDOWS):
            found.setdefault(name, {})[field] = number
    return [
        Window(name, fields.get("limit"), fields.get("remaining"), fields.get("reset"))
        for name, fields in found.items()
    ]


@lru_cache(maxsize=256)  # Each answer has some twenty headers, and always the same.
def _part_of(header: bytes) -> tuple[str, str] | None:
    """Return the limit that a header tells of, and the field of it; None: no limit that counts."""
    match = _HEADER.fullmatch(header)
    if match is None:
        return None
    family, words = match[1].decode(), match[2].decode().split("-")
    field = next((word for word in (words[0], words[-1]) if word in _FIELDS), None)
    if field is None:
        return None
    words.remove(field)
    if family != "ratelimit":
        words.insert(0, "tokens")
    name = "-".join(words)
    return (name, field) if _is_known(name) else None


def _read_field(field: str, text: str, unix: float) -> float | None:
    value = duration_s(text, unix) if field == "reset" else _number(text)
    # Zero limits and negative remainders mean "unknown" where they occur (Azure).
    return value if value is not None and value >= (1 if field == "limit" else 0) else None


def _is_known(name: str) -> bool:
    """Leave out what counts neither requests nor tokens, such as spend or subscriptions."""
    words = [word for word in name.split("-") if word not in ("", *_WINDOWS_S)]
    words = [word for word in words if not word.isdecimal()]
    return not words or any(word.startswith(("req", "token")) for word in words)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _starts_unit(text: str) -> bool:
    return _DURATION.match(text.lower()) is not None


@lru_cache(maxsize=256)  # Limits that are hardly used are whole again in the same few times.
def _units_s(text: str) -> float | None:
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _moment_s(text: str, unix: float) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return max(0.0, moment.timestamp() - unix) if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _date_s(text: str, unix: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - unix)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
