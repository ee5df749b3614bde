"""ULIDs: sortable by time, unique without coordination (github.com/ulid/spec)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_FROM_BYTE = (_ALPHABET * 8).encode()
"""A letter for each byte, by its low five bits."""


def ulid_time(id: str) -> float | None:
    """Return when an id was made, in Unix seconds; None for what is no ULID."""
    if len(id) != 26 or not set(id) <= set(_ALPHABET):
        return None
    ms = 0
    for letter in id[:10]:
        ms = ms * 32 + _ALPHABET.index(letter)
    return ms / 1000


def new_ulid(clock: Callable[[], float], entropy: Callable[[int], bytes] = os.urandom) -> str:
    """Return 26 characters: 48 bits of milliseconds, then 80 random bits."""
    ms = int(clock() * 1000)
    time = "".join([_PAIRS[ms >> shift & 1023] for shift in (40, 30, 20, 10, 0)])
    return time + entropy(16).translate(_FROM_BYTE).decode()
