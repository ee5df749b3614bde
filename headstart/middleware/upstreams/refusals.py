"""Turns what a provider refused with, in its own words, into an error of ours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.errors import UpstreamError, UpstreamProtocolError, UpstreamRefused
from headstart.policies.routing.failures import FailureKind
from headstart.settings import masked_url
from headstart.types import ErrorReported

if TYPE_CHECKING:
    from headstart.dialects.dialect import Dialect
    from headstart.reply import Reply
    from headstart.types import Headers

REFUSAL_BYTES = 64 * 1024
"""A longer error body is replaced by one of ours."""
_SHOWN_CHARACTERS = 200
"""How much of the address of a redirect an error shows."""
_CODE = re.compile(r"[A-Za-z0-9_.:/#-]{1,64}")


def reported(
    event: ErrorReported, upstream: str, headers: Headers, dialect: Dialect, request_id: str
) -> UpstreamRefused:
    """Return the error in a 200 answer as the error status that it should have had."""
    status = event.status if event.status is not None and 400 <= event.status < 600 else 502
    return UpstreamRefused(
        f"upstream {upstream} answered 200 with an error: {event.message}",
        status=status,
        headers=_own_headers(headers, dialect),
        body=dialect.error_body(event, request_id),
        code=_code_of(event),
        upstream=upstream,
    )


def _code_of(event: ErrorReported | None) -> str:
    """Return the code of a provider's error for books and logs.

    A code that is a text may quote the request, and is left out.
    """
    code = "" if event is None or event.code is None else event.code
    return code if _CODE.fullmatch(code) else UpstreamError.code


def redirected(reply: Reply) -> UpstreamProtocolError:
    named = dict(reply.headers).get(b"location", b"").decode("latin-1")
    where = f" to {masked_url(named)[:_SHOWN_CHARACTERS]}" if named else ""
    return UpstreamProtocolError(
        f"upstream {reply.upstream} answered {reply.status}, a redirect{where}, and Headstart "
        f"follows no redirect: set upstream.base_url to the address that answers itself",
        kind=FailureKind.REDIRECTED,
    )


async def refusal(reply: Reply, dialect: Dialect | None, request_id: str) -> UpstreamRefused:
    body = bytearray()
    event: ErrorReported | None = None
    async for piece in reply.pieces:
        body += piece.data
        event = next((each for each in piece.events if isinstance(each, ErrorReported)), event)
        if len(body) > REFUSAL_BYTES:
            break
    message = event.message if event is not None else f"the upstream answered {reply.status}"
    headers = reply.headers
    if len(body) > REFUSAL_BYTES and dialect is not None:
        event = ErrorReported(message=message, status=reply.status)
        body[:] = dialect.error_body(event, request_id)
        headers = _own_headers(headers, dialect)
    return UpstreamRefused(
        f"upstream {reply.upstream}: {message}",
        status=reply.status,
        headers=headers,
        body=bytes(body),
        code=_code_of(event),
        upstream=reply.upstream,
    )


def _own_headers(headers: Headers, dialect: Dialect) -> Headers:
    """Return a provider's headers for a body of ours."""
    kept = tuple(pair for pair in headers if not pair[0].startswith(b"content-"))
    return (*kept, (b"content-type", dialect.content_types.json))
