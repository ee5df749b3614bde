"""Replies that are not streamed: JSON bodies and errors in dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.simulator.reply import Piece, Reply

if TYPE_CHECKING:
    from headstart.simulator.wire import Wire
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
    wire: Wire,
    status: int,
    message: str,
    *,
    type: str | None = None,
    code: str | None = None,
    retry_after_s: float | None = None,
) -> Reply:
    """Return an error in a dialect."""
    body = wire.error(status, message, type=type, code=code, retry_after_s=retry_after_s)
    return json_reply(status, body)


def unknown_url(wire: Wire, method: str, path: bytes) -> Reply:
    """Return the 404 for a path or method that is not served."""
    message = f"Unknown request URL: {method} {path.decode('latin-1')}."
    return error_reply(wire, 404, message, code="unknown_url")
