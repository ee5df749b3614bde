"""Reading the JSON of answers: what the decoders of all dialects ask of it."""

from __future__ import annotations

from typing import Any

import msgspec

from headstart.types import ErrorReported

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no JSON."""


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


def unreadable(message: str) -> ErrorReported:
    """Return what is reported of an answer that cannot be read."""
    return ErrorReported(message=message, code="upstream_protocol_error")
