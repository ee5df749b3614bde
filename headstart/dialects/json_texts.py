"""JSON texts with halves of characters."""

from __future__ import annotations

import re

ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""The escapes of a JSON text. The group is half of a surrogate pair, which is no character."""


def half_of_a_pair(body: bytes) -> str | None:
    """Return where a JSON text has half of a surrogate pair; None if it has none.

    JavaScript cuts a text between the halves of an emoji, and writes the half as an escape.
    """
    halves = (found for found in ESCAPES.finditer(body) if found[1])
    half = next(halves, None)
    if half is None:
        return None
    escape, at = half[0].decode(), half.start()
    return f"{escape} at byte {at} is half of a character, such as an emoji. Cut no text there"


def mend(data: bytes) -> bytes:
    """Return a JSON text with U+FFFD for each half of a surrogate pair."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return ESCAPES.sub(lambda found: b"\\ufffd" if found[1] else found[0], data)
