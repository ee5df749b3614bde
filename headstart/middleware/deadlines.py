"""How long a request may take: the tightest of what the operator, the caller and its SDK say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headstart.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

RETRY_GRACE_S = 10.0
"""How long a call goes on for the retry of the SDK that gave it up.

OpenAI's and Anthropic's come back after 0.5 to 8 s.
"""
SDK_RETRIES = 2
"""As often do they, unless they are told otherwise; which of the tries it is, they say."""
_FOREVER_S = 1e9


class Deadlines(NamedTuple):
    """Bounds in seconds from now, or None without any."""

    begin_s: float | None
    """Until the caller gets the first byte, or hears that there is no answer."""
    whole_s: float | None
    """Until the answer has ended."""
    again: bool = False
    """Its SDK asks for the same once more when it has waited so long for the first byte."""


UNBOUNDED = Deadlines(None, None)


def deadlines(headers: Iterable[tuple[bytes, bytes]], configured: float | None) -> Deadlines:
    """Return the tightest bounds. Raises InvalidRequest for a deadline that is none.

    Read are ``x-headstart-deadline-ms`` and, of SDKs, ``x-stainless-read-timeout`` and
    ``x-stainless-retry-count``, where a value that is no number is ignored. An SDK's bound is that
    of one read, so it ends with the first byte: what follows may take its time.
    """
    bounds = [] if configured is None else [configured]
    sdk_s, retries = None, 0.0
    for name, value in headers:
        if name == b"x-headstart-deadline-ms":
            bounds.append(_milliseconds(value))
        elif name == b"x-stainless-read-timeout":
            sdk_s = _positive(value)
        elif name == b"x-stainless-retry-count":
            retries = _positive(value) or 0.0
    bound_s = min(bounds, default=None)
    if sdk_s is None or (bound_s is not None and bound_s <= sdk_s):
        return Deadlines(bound_s, bound_s)
    return Deadlines(sdk_s, bound_s, again=retries < SDK_RETRIES)


def _milliseconds(value: bytes) -> float:
    """Return seconds."""
    found = _positive(value)
    if found is None:
        raise InvalidRequest("X-Headstart-Deadline-Ms must be a number of milliseconds above 0")
    return found / 1e3


def _positive(value: bytes) -> float | None:
    """Return the header's number, or None if it is none."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < _FOREVER_S else None
