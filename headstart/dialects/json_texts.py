"""JSON texts with mistakes: values that JSON does not have, and halves of characters."""

from __future__ import annotations

import re

ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""The escapes of a JSON text. The group is half of a surrogate pair, which is no character."""
_NO_NUMBERS = re.compile(rb'"(?:[^"\\]|\\.)*"?|(-?Infinity|NaN)', re.DOTALL)
"""The strings of a JSON text. The group is, outside of them, a value that JSON does not have."""
_LOWEST = b"-9999.0"
"""OpenAI's log probability of a token that cannot come, where others write ``-Infinity``."""


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
    """Return a JSON text without the mistakes that many clients do not mind.

    A half of a surrogate pair becomes U+FFFD, ``-Infinity`` becomes ``_LOWEST``, and ``NaN`` and
    ``Infinity`` become null: servers in Python write such log probabilities.
    """
    if b"\\ud" in data or b"\\uD" in data:
        data = ESCAPES.sub(lambda found: b"\\ufffd" if found[1] else found[0], data)
    if b"NaN" in data or b"Infinity" in data:
        data = _NO_NUMBERS.sub(_number, data)
    return data


def _number(found: re.Match[bytes]) -> bytes:
    if found[1] is None:
        return found[0]
    return _LOWEST if found[1] == b"-Infinity" else b"null"
