"""How long a request may take: the tightest of what the operator, the caller and its SDK say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_FOREVER_S = 1e9


def deadline_s(headers: Iterable[tuple[bytes, bytes]], configured: float | None) -> float | None:
    """Return the tightest bound in seconds, or None without any.

    Read are ``x-headstart-deadline-ms`` and ``x-stainless-read-timeout``, an SDK's read timeout;
    a value that is no number is ignored.
    """
    bounds = [] if configured is None else [configured]
    for name, value in headers:
        if name == b"x-headstart-deadline-ms":
            bounds += [ms / 1e3 for ms in _positive(value)]
        elif name == b"x-stainless-read-timeout":
            bounds += _positive(value)
    return min(bounds, default=None)


def _positive(value: bytes) -> list[float]:
    """Return the header's number, or nothing if it is none."""
    try:
        number = float(value)
    except ValueError:
        return []
    return [number] if 0 < number < _FOREVER_S else []
