"""Who is calling: the credential behind a request, and whether it may come in.

Fails closed: no identity means no shared answers, a wrong key means 401.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from headstart.errors import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.types import Headers

CREDENTIAL_HEADERS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
ACCEPTED_FOR_S = 3600.0
"""How long a credential that an upstream accepted may read shared answers."""


def credential_of(headers: Headers, query_string: bytes, *, cookies: bool) -> bytes | None:
    """Return what identifies the caller, or None: key headers, ``?key=`` and, if asked, cookies."""
    found = [
        name + b"\0" + value
        for name, value in headers
        if name in CREDENTIAL_HEADERS or (cookies and name == b"cookie")
    ]
    if b"key=" in query_string:
        found += [
            b"key\0" + value.encode()
            for name, value in parse_qsl(query_string.decode("latin-1"))
            if name == "key"
        ]
    return b"\n".join(sorted(found)) or None


def check_client_key(headers: Headers, keys: Sequence[bytes]) -> None:
    """Raise Unauthorized unless a key header carries one of ``keys``. No keys: everyone may."""
    if not keys:
        return
    given = [
        value.removeprefix(b"Bearer ").removeprefix(b"bearer ").strip()
        for name, value in headers
        if name in CREDENTIAL_HEADERS
    ]
    if not given:
        raise Unauthorized("no API key: send one of server.client_keys as a Bearer token")
    matches = [hmac.compare_digest(key, candidate) for candidate in given for key in keys]
    if not any(matches):
        raise Unauthorized("this API key is not one of server.client_keys")


class AcceptedCredentials:
    """Credentials that an upstream accepted recently; only those may read shared answers."""

    def __init__(self, clock: Callable[[], float], capacity: int = 100_000) -> None:
        self._clock = clock
        self._capacity = capacity
        self._seen: OrderedDict[str, float] = OrderedDict()

    def accept(self, scope: str) -> None:
        """Note that an upstream answered 200 to the credential hashed as ``scope``."""
        self._seen[scope] = self._clock()
        self._seen.move_to_end(scope)
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def reject(self, scope: str) -> None:
        """Note that an upstream refused this credential (401 or 403)."""
        self._seen.pop(scope, None)

    def __contains__(self, scope: str | None) -> bool:
        seen = self._seen.get(scope) if scope is not None else None
        return seen is not None and self._clock() - seen < ACCEPTED_FOR_S
