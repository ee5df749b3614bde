"""Reading the JSON of answers: what the decoders of all dialects ask of it."""

from __future__ import annotations

from typing import Any

import msgspec

from headstart.types import ErrorReported

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no JSON."""
MOST_TOKENS = 1_000_000_000
"""More than any model reads or writes at once: a larger number is no count of tokens."""


class MalformedAnswerError(Exception):
    """The answer has a shape that its API does not send."""


def decode_document(body: bytes) -> Any:
    """Return what a whole answer decodes to, None if it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except UNDECODABLE:
        return None


def as_object(value: Any, what: str) -> dict[str, Any]:
    """Return an object. Raises MalformedAnswerError that says ``what`` is none."""
    if not isinstance(value, dict):
        raise MalformedAnswerError(f"{what} is not an object")
    return value


def as_text(value: Any) -> str | None:
    """Return a text, None for an empty one and for anything else."""
    return value if value and isinstance(value, str) else None


def as_count(value: Any) -> int:
    """Return a number of tokens, 0 for whatever cannot be one.

    Budgets, books and the store rely on its bound. Some APIs write whole numbers as floats.
    """
    return int(value) if type(value) in (int, float) and 0 < value <= MOST_TOKENS else 0


def unreadable(message: str) -> ErrorReported:
    """Return what is reported of an answer that cannot be read."""
    return ErrorReported(message=message, code="upstream_protocol_error")
