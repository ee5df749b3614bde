"""The headers of our answers (``docs/headers.md``) and sending them over ASGI."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import Outcome
from headstart.errors import HeadstartError, RequestError, UpstreamError, UpstreamUnavailable
from headstart.middleware.upstreams.headers import OWN_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.decisions import Lookup
    from headstart.middleware.asgi_types import Message, Send
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.types import Headers

JSON = b"application/json"
_OWN_ANYWHERE = frozenset((b"cache-status", b"x-cache"))
_OWN = _OWN_ANYWHERE | {b"age", b"server-timing"}
NO_STORE = (b"cache-control", b"no-store")
STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


def cache_status(
    lookup: Lookup,
    *,
    ttl_s: float | None = None,
    stored: bool = False,
    not_stored: str | None = None,
) -> bytes:
    """Return the ``Cache-Status`` value (RFC 9211) of an answer.

    The RFC has one word, ``detail``, for both why nothing was found and why nothing is kept.
    """
    if lookup.outcome in (Outcome.EXACT, Outcome.SEMANTIC):
        ttl = "" if ttl_s is None else f"; ttl={int(ttl_s)}"
        return f"headstart; hit{ttl}; detail={lookup.outcome}".encode()
    if lookup.outcome is Outcome.JOINED:
        return b"headstart; fwd=miss; collapsed; detail=joined"
    forward = "bypass" if lookup.outcome is Outcome.BYPASS else "miss"
    if lookup.reason == "stale":
        forward = "stale"
    details = [lookup.reason, None if not_stored is None else f"not-stored:{not_stored}"]
    detail = "/".join(filter(None, details))
    detail = f"; detail={detail}" if detail else ""
    return f"headstart; fwd={forward}{detail}{'; stored' if stored else ''}".encode()


_X_CACHE = {Outcome.EXACT: b"HIT", Outcome.SEMANTIC: b"HIT", Outcome.BYPASS: b"BYPASS"}


def own_headers(
    request_id: str,
    lookup: Lookup,
    timings: dict[str, float],
    *,
    ttl_s: float | None = None,
    stored: bool = False,
    not_stored: str | None = None,
) -> list[tuple[bytes, bytes]]:
    """Return the headers that every answer of a matched request carries."""
    status = cache_status(lookup, ttl_s=ttl_s, stored=stored, not_stored=not_stored)
    headers = [
        (b"cache-status", status),
        (b"x-cache", _X_CACHE.get(lookup.outcome, b"MISS")),
        (b"x-headstart-request-id", request_id.encode()),
        (b"server-timing", server_timing(timings)),
    ]
    if lookup.similarity is not None:
        headers.append((b"x-headstart-similarity", f"{lookup.similarity:.4f}".encode()))
    if lookup.veto is not None:
        headers.append((b"x-headstart-veto", lookup.veto.encode()))
    return headers


def server_timing(timings: dict[str, float]) -> bytes:
    """Return stage times (seconds) as ``Server-Timing`` in milliseconds."""
    return ", ".join(
        [f"{name};dur={seconds * 1e3:.2f}" for name, seconds in timings.items()]
    ).encode()


def foreign(headers: Headers, *, relayed: bool = False) -> list[tuple[bytes, bytes]]:
    """Return headers of an answer of others without those that are ours alone to say.

    An upstream, which may be another Headstart, could otherwise state beside ours that an answer
    was a hit, how similar, how old, and who gave it. ``relayed``: to a request for which the cache
    was not asked, so that an age or a timing can only be the upstream's.
    """
    dropped = _OWN_ANYWHERE if relayed else _OWN
    return [
        pair for pair in headers if pair[0] not in dropped and not pair[0].startswith(OWN_PREFIX)
    ]


def relayed_headers(
    headers: Headers,
    own: list[tuple[bytes, bytes]],
    *,
    stream: bool = False,
    length: int | None = None,
) -> Headers:
    """Return an upstream's headers with ours; ours replace those of an upstream Headstart.

    ``length`` is that of a body that is sent whole. A stream has none: if it breaks off, an error
    of ours follows.
    """
    theirs = dict(headers)
    defaults = STREAM_HEADERS if stream else (NO_STORE,)
    relayed = foreign(headers)
    if stream or length is not None:
        relayed = [pair for pair in relayed if pair[0] != b"content-length"]
    relayed += own
    relayed += [pair for pair in defaults if pair[0] not in theirs]
    if length is not None:
        relayed.append((b"content-length", b"%d" % length))
    return tuple(relayed)


def response_start(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Message:
    """Return the message that begins an answer; every answer of ours begins with one from here.

    Its headers are a new list each time: middleware around ours (Starlette's ``MutableHeaders``)
    appends to the very object, which must be neither a tuple nor shared with another answer.
    """
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


async def send_whole(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> None:
    """Send a whole answer in two messages."""
    await send(response_start(status, headers))
    await send({"type": "http.response.body", "body": body, "more_body": False})


def error_response(
    error: HeadstartError, dialect: Dialect | None, request_id: str, *, again: bool = False
) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of an error, in the caller's dialect.

    Our own headers are the caller's to add: a matched request has more of them than a relayed one.
    ``again``: the call goes on, and a retry will join it.
    """
    status = error.status if isinstance(error, (RequestError, UpstreamError)) else 500
    if dialect is not None:
        body = dialect.error_body(error, request_id)
    else:
        body = plain_error(getattr(error, "code", "error"), str(error))
    headers = [
        (b"content-type", JSON),
        (b"content-length", str(len(body)).encode()),
        (request_id_header(dialect), request_id.encode()),
        NO_STORE,
    ]
    if isinstance(error, UpstreamUnavailable):
        wait_s = 1.0 if error.retry_after_s is None else error.retry_after_s
        headers.append((b"retry-after", str(max(1, math.ceil(wait_s))).encode()))
    elif isinstance(error, UpstreamError):
        # Unless the call goes on, we did, as often as it made sense.
        headers.append((b"x-should-retry", b"true" if again else b"false"))
    elif status == 429:
        headers.append((b"retry-after", b"1"))
    return status, tuple(headers), body


def request_id_header(dialect: Dialect | None) -> bytes:
    """Return the header in which a dialect's clients look for the request's id."""
    return b"x-request-id" if dialect is None else dialect.request_id_header


def plain_error(code: str, message: str) -> bytes:
    """Return an error body for a path that has no dialect."""
    return msgspec.json.encode({"error": {"message": message, "type": code, "code": code}})
