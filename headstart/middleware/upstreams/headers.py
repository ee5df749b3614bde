"""Which headers travel to an upstream and back."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote_to_bytes

from headstart.policies.caller_headers import KEY_HEADERS, is_secret, is_secret_parameter

if TYPE_CHECKING:
    from headstart.types import Headers

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_UP = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
OWN_PREFIX = b"x-headstart-"
_WITH_A_KEY = frozenset((b"openai-organization", b"openai-project", b"x-goog-user-project"))
"""Headers that belong to a caller's key, beside other secrets: on whose bill it is spent."""
_NEUTRAL = frozenset(
    (
        b"accept-language",
        b"baggage",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-request-id",
    )
)
_BEARER = (b"authorization", b"Bearer ")
_KEY_FORMS = {
    "anthropic-messages": (b"x-api-key", b""),
    "gemini-generate": (b"x-goog-api-key", b""),
}
"""By dialect, the header of a key and what precedes it; others take a bearer token."""


def headers_up(headers: Headers, credential: Headers | None) -> list[tuple[str, str]]:
    """Return the client's end-to-end headers for an upstream, without our own control headers.

    ``credential`` replaces the client's key, every other secret of his, and what goes with them (an
    upstream with its own key); None passes the client's own on.
    """
    dropped = _NOT_UP if credential is None else _NOT_UP | _WITH_A_KEY
    named = _connection_names(headers)
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in dropped and name not in named and not name.startswith(OWN_PREFIX)
        if credential is None or not is_secret(name)
    ]
    for name, value in credential or ():
        kept.append((name.decode("latin-1"), value.decode("latin-1")))
    return kept


def query_up(query: bytes, credential: Headers | None) -> bytes:
    """Return the client's query for an upstream: without his secrets, where it has another key."""
    if credential is None or not query:
        return query
    return b"&".join(pair for pair in query.split(b"&") if not _holds_secret(pair))


def _holds_secret(pair: bytes) -> bool:
    """Tell whether a part of a query has a secret's name. Some servers split it at ``;``, too."""
    names = [part.partition(b"=")[0] for part in pair.split(b";")]
    return any(is_secret_parameter(unquote_to_bytes(name)) for name in names)


def headers_across(
    headers: Headers, query: bytes, credential: Headers | None, dialect: str
) -> list[tuple[str, str]]:
    """Return the headers for a provider of another dialect than the client's.

    Only what belongs to no dialect travels. ``credential`` as in ``headers_up``; None gives the
    client's own key in the form that the provider takes.
    """
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name in _NEUTRAL
    ]
    if credential is None:
        key = _key_of(headers, query)
        name, prefix = _KEY_FORMS.get(dialect, _BEARER)
        credential = () if key is None else ((name, prefix + key),)
    kept += [(name.decode("latin-1"), value.decode("latin-1")) for name, value in credential]
    return [*kept, ("content-type", "application/json"), ("accept-encoding", "identity")]


def _key_of(headers: Headers, query: bytes) -> bytes | None:
    """Return the caller's bare key, from whatever header or ``?key=`` it came in."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key:
                return key.strip()
        elif name in KEY_HEADERS:
            return value
    pairs = parse_qsl(query.decode("latin-1"))
    return next((value.encode() for name, value in pairs if name == "key"), None)


def headers_down(headers: Headers, *, body_changed: bool) -> Headers:
    """Return an upstream's end-to-end headers for the client."""
    named = _connection_names(headers)
    dropped = HOP_BY_HOP | named if named else HOP_BY_HOP
    kept = [pair for pair in headers if pair[0] not in dropped]
    if body_changed:
        kept = [pair for pair in kept if pair[0] != b"content-length"]
    return tuple(kept)


def _connection_names(headers: Headers) -> frozenset[bytes]:
    """Names that the ``connection`` headers, of which there may be several, call hop by hop."""
    return frozenset(
        part.strip().lower()
        for name, value in headers
        if name == b"connection"
        for part in value.split(b",")
    )
