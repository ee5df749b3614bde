"""Replies that are not streamed: JSON bodies and errors in dialect."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headstart.simulator.dialect import render_error
from headstart.simulator.reply import Piece, Reply

if TYPE_CHECKING:
    from headstart.types import Headers

_JSON = (b"content-type", b"application/json")


def json_reply(status: int, body: bytes, headers: Headers = (), *, at_s: float = 0.0) -> Reply:
    """Return a JSON reply whose head and body are due together."""
    length = (b"content-length", b"%d" % len(body))
    return Reply(
        status=status,
        headers=(_JSON, length, *headers),
        pieces=(Piece(at_s, body),),
        head_at_s=at_s,
    )


def error_reply(
    status: int,
    message: str,
    *,
    type: str = "invalid_request_error",
    code: str | None = None,
    headers: Headers = (),
) -> Reply:
    """Return an error in the OpenAI dialect."""
    return json_reply(status, render_error(message, type=type, code=code), headers)


def unknown_url(method: str, path: bytes) -> Reply:
    """Return the 404 for a path or method that is not served."""
    return error_reply(
        404, f"Unknown request URL: {method} {path.decode('latin-1')}.", code="unknown_url"
    )


def too_many_requests(retry_after_s: float) -> Reply:
    """Return a 429 that says when to come back."""
    headers: Headers = (
        (b"retry-after", b"%d" % math.ceil(retry_after_s)),
        (b"retry-after-ms", b"%d" % math.ceil(retry_after_s * 1000)),
    )
    return error_reply(
        429,
        "Rate limit reached for requests.",
        type="requests",
        code="rate_limit_exceeded",
        headers=headers,
    )
