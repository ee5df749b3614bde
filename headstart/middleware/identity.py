"""Who is calling: the credential behind a request, and whether it may come in.

Fails closed: no identity means no shared answers, a wrong key means 401.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from headstart.errors import Forbidden, Unauthorized
from headstart.observe import logger
from headstart.policies.key import scope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.middleware.asgi_types import Scope
    from headstart.policies.origins import OriginRules
    from headstart.types import Headers

CREDENTIAL_HEADERS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
ACCEPTED_FOR_S = 3600.0
"""How long a credential that an upstream accepted may read shared answers."""
MEMO_SCOPES = 4096


@dataclass(frozen=True)
class SharingOptions:
    """Who may share answers. ``scope`` is ``credential``, ``shared`` or ``header:NAME``."""

    scope: str = "credential"
    share_users: bool = False
    anonymous: bool = False
    """Requests without a credential share one scope (bound to loopback) instead of bypassing."""
    cookies: bool = False
    """Cookies identify the caller too (mounted in an app)."""
    resolve: Callable[[Scope], str | None] | None = None
    client_keys: tuple[bytes, ...] = field(default=(), repr=False)
    trusted_proxies: tuple[str, ...] = ()
    key_headers: tuple[bytes, ...] = ()


def credential_of(headers: Headers, query_string: bytes, *, cookies: bool) -> bytes | None:
    """Return what identifies the caller, or None: key headers, ``?key=`` and, if asked, cookies."""
    found = [
        name + b"\0" + value
        for name, value in headers
        if name in CREDENTIAL_HEADERS or (cookies and name == b"cookie")
    ]
    found += [b"key\0" + value for value in _keys_in(query_string)]
    return b"\n".join(sorted(found)) or None


def check_client_key(headers: Headers, query_string: bytes, keys: Sequence[bytes]) -> None:
    """Raise Unauthorized unless a key header, or ``?key=``, carries one of ``keys``.

    No keys: everyone may come in.
    """
    if not keys:
        return
    given = [_without_scheme(value) for name, value in headers if name in CREDENTIAL_HEADERS]
    given += _keys_in(query_string)
    if not given:
        raise Unauthorized("no API key: send one of server.client_keys as a Bearer token")
    matches = [hmac.compare_digest(key, candidate) for candidate in given for key in keys]
    if not any(matches):
        raise Unauthorized("this API key is not one of server.client_keys")


class Door:
    """Decides by a request's head alone whether it may come in: nothing is read for who may not.

    ``origins`` are the rules for web pages; None: an app around us has its own, or a key is needed.
    """

    def __init__(
        self, client_keys: Sequence[bytes] = (), origins: OriginRules | None = None
    ) -> None:
        self._client_keys = client_keys
        self._origins = origins

    def admit(self, scope: Scope) -> None:
        """Raise Unauthorized or Forbidden unless a request may come in."""
        if self._client_keys:
            check_client_key(tuple(scope["headers"]), scope["query_string"], self._client_keys)
        if self._origins is not None and (why := self._origins.refusal(scope["headers"])):
            raise Forbidden(why)


def _without_scheme(value: bytes) -> bytes:
    """Take ``Bearer`` off a key; upper and lower case do not count (RFC 9110, 11.1)."""
    scheme, _, key = value.partition(b" ")
    return (key if scheme.lower() == b"bearer" else value).strip()


def _keys_in(query_string: bytes) -> list[bytes]:
    """Return the values of ``key``, in which Gemini's clients may send theirs."""
    if b"key=" not in query_string:
        return []
    pairs = parse_qsl(query_string.decode("latin-1"))
    return [value.encode() for name, value in pairs if name == "key"]


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


class Callers:
    """Who a request comes from, and whose answers it may read. Keeps the hashes of the last."""

    def __init__(
        self, sharing: SharingOptions, accepted: AcceptedCredentials, secret: bytes
    ) -> None:
        self._sharing = sharing
        self._accepted = accepted
        self._secret = secret
        kind, _, name = sharing.scope.partition(":")
        self._scope_header = name.lower().encode() if kind == "header" else b""
        self._trusted = tuple(ip_network(net, strict=False) for net in sharing.trusted_proxies)
        self._hinted = False
        self._hashes: dict[tuple[bytes | None, bytes | None, str | None], str] = {}

    def renew(self, secret: bytes) -> bool:
        """Name scopes by the store's secret of now; tell whether it is another one.

        No name of before is ever one of now, so what was kept under it is out of reach.
        """
        if secret == self._secret:
            return False
        self._secret = secret
        self._hashes.clear()
        return True

    @property
    def reads(self) -> frozenset[bytes]:
        """The header that names the scope, if one does."""
        return frozenset((self._scope_header,)) - {b""}

    def credential(self, headers: Headers, query_string: bytes) -> bytes | None:
        """Return what identifies the caller, or None."""
        return credential_of(headers, query_string, cookies=self._sharing.cookies)

    def identify(self, scope: Scope, headers: Headers, credential: bytes | None) -> bytes | None:
        """Return the bytes that identify who may share this request's answer, or None."""
        sharing = self._sharing
        found: bytes | None
        if sharing.resolve is not None:
            named = sharing.resolve(scope)
            found = None if named is None else b"scope\0" + named.encode()
        elif sharing.scope == "shared":
            found = b"shared"
        elif self._scope_header:
            values = [value for name, value in headers if name == self._scope_header]
            believed = len(values) == 1 and self._from_trusted_proxy(scope)
            found = b"header\0" + values[0] if believed else None
        else:
            found = b"anonymous" if credential is None and sharing.anonymous else credential
        if found is None:
            self._hint()
        return found

    def scope_name(self, identity: bytes, subdivision: bytes | None, user: str | None) -> str:
        """Hash who is asking: ``identity``, its own ``subdivision``, and unless shared the user."""
        return self._hash(identity, subdivision, None if self._sharing.share_users else user)

    def principal(self, credential: bytes | None, user: str | None) -> str:
        """Hash who asks, also where all share one scope: by credential, and by user within one.

        Where several credentials share answers the user does not count: a caller could be many.
        """
        alone = self._sharing.resolve is None and self._sharing.scope == "credential"
        return self._hash(credential, None, user if alone else None)

    def tenant(self, identity: bytes, credential: bytes | None) -> str:
        """Hash who takes turns with others in queues: by scope and credential.

        Neither ``user`` nor ``X-Headstart-Scope`` counts: a caller could be many by them.
        """
        return self._hash(identity, credential, None)

    def asker(self, tenant: str, subdivision: bytes | None, user: str | None) -> str:
        """Hash who asks as closely as it can be told: the tenant, its part and the user within."""
        return self._hash(tenant.encode(), subdivision, user)

    def _hash(self, identity: bytes | None, subdivision: bytes | None, user: str | None) -> str:
        asking = (identity, subdivision, user)
        name = self._hashes.get(asking)
        if name is None:
            name = scope_of(
                self._secret,
                credential=identity,
                subdivision=subdivision.decode("latin-1") if subdivision is not None else None,
                user=user,
            )
            if len(self._hashes) >= MEMO_SCOPES:
                self._hashes.clear()
            self._hashes[asking] = name
        return name

    def credential_scope(self, headers: Headers) -> str | None:
        """Return the hash under which a credential is noted as accepted, if answers are shared."""
        if self._sharing.scope != "shared":
            return None
        credential = self.credential(headers, b"")
        return scope_of(self._secret, credential=credential)

    def may_read(self, headers: Headers) -> bool:
        """Answers that all share are read only with a credential that an upstream accepted."""
        sharing = self._sharing
        if sharing.scope != "shared" or sharing.client_keys or sharing.anonymous:
            return True
        return self.credential_scope(headers) in self._accepted

    def _from_trusted_proxy(self, scope: Scope) -> bool:
        client = scope.get("client")
        if not client:
            return False
        try:
            address = ip_address(client[0])
        except ValueError:
            return False
        return any(address in network for network in self._trusted)

    def _hint(self) -> None:
        """Say once why nothing is cached for callers that nobody knows."""
        if not self._hinted:
            self._hinted = True
            logger.warning("requests %s", _why_unknown(self._sharing))


def _why_unknown(sharing: SharingOptions) -> str:
    if sharing.resolve is not None:
        return "for which the scope= function returns None bypass the cache"
    if sharing.scope.startswith("header:"):
        _, _, name = sharing.scope.partition(":")
        peers = ", ".join(sharing.trusted_proxies) or "nobody"
        return (
            f"without one {name} header from a proxy in server.trusted_proxies ({peers}) bypass "
            f"the cache, which cache.scope = {sharing.scope!r} asks for"
        )
    return (
        "without a credential bypass the cache: send a key header, or set cache.scope or the "
        "middleware's scope="
    )
