"""ULIDs: sortable by time, unique without coordination (github.com/ulid/spec)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)


def new_ulid(clock: Callable[[], float], entropy: Callable[[int], bytes] = os.urandom) -> str:
    """Return 26 characters: 48 bits of milliseconds, then 80 random bits."""
    number = int(clock() * 1000) << 80 | int.from_bytes(entropy(10), "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])
