"""Signs requests to AWS with Signature Version 4. Pure: keys, time and request in, headers out.

Our own, because botocore's signer comes with 16 MB of descriptions of all services.
"""

from __future__ import annotations

import hmac
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALGORITHM = "AWS4-HMAC-SHA256"


class AwsKeys(NamedTuple):
    """The keys of one AWS identity."""

    id: str
    secret: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "AwsKeys(***)"


class SignedRequest(NamedTuple):
    """The parts of a request that a signature covers."""

    method: str
    host: str
    path: str
    """As it goes out, percent-encoded."""
    query: str
    headers: tuple[tuple[str, str], ...]
    """Further headers to sign."""
    body: bytes


def sign(
    request: SignedRequest, keys: AwsKeys, *, region: str, service: str, now: float
) -> tuple[tuple[str, str], ...]:
    """Return the headers that authorise a request. ``now`` is in Unix seconds."""
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    added = [("x-amz-date", moment)]
    if keys.session_token is not None:
        added.append(("x-amz-security-token", keys.session_token))
    headers = _canonical_headers((("host", request.host), *request.headers, *added))
    names = ";".join(headers)
    canonical = "\n".join(
        (
            request.method,
            quote(request.path or "/", safe="/~"),
            _canonical_query(request.query),
            *(f"{name}:{value}" for name, value in headers.items()),
            "",
            names,
            sha256(request.body).hexdigest(),
        )
    )
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    text = "\n".join((_ALGORITHM, moment, scope, sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={keys.id}/{scope}"
    proof = f"{_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
    return (*added, ("authorization", proof))


def _canonical_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name, sorted; values of one name are joined by commas."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name.lower(), []).append(" ".join(value.split()))
    return {name: ",".join(values[name]) for name in sorted(values)}


def _canonical_query(query: str) -> str:
    if not query:
        return ""
    pairs = [pair.partition("=") for pair in query.split("&")]
    encoded = [(_encoded(name), _encoded(value)) for name, _, value in pairs]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))


def _encoded(text: str) -> str:
    return quote(unquote_plus(text), safe="~")
