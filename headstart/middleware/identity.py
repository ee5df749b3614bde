"""Identifies callers: their credentials, their scopes, and whether they may use the gateway.

A request without an identity shares no answers. A request with a wrong key gets 401.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from headstart.dialects.registry import KEY_HEADERS, PROTOCOL_HEADERS
from headstart.errors import Forbidden, Unauthorized
from headstart.observe import logger
from headstart.policies.callers import (
    identifying_cookies,
    identifying_query,
    tells_address,
    tells_callers_apart,
    without_agent_session,
)
from headstart.policies.key import scope_of
from headstart.types import Headers, Latest, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headstart.policies.callers import OriginRules

ACCEPTED_FOR_S = 3600.0
"""Seconds for which a credential that an upstream accepted may read shared answers."""
MEMO_SCOPES, MEMO_BYTES = 4096, 8 * 1024
"""The hashes of 1,024 senders are remembered, if the headers of a sender are not longer than
this."""
MANY_VALUES = 10
"""Number of values of one header after which a line in the log names the header."""
MOST_NAMES = 64
"""Number of headers whose values are counted."""


class ClientKey(NamedTuple):
    """A key that callers may send, and the name of its callers; "": they have no name."""

    name: str
    key: bytes


@dataclass(frozen=True)
class SharingOptions:
    """The callers that may share answers.

    ``scope`` is ``credential``, ``shared`` or ``header:NAME``.
    """

    scope: str = "credential"
    share_users: bool = False
    anonymous: bool = False
    """Requests without a credential share one scope (bound to loopback) instead of bypassing."""
    wrapped: bool = False
    """An app answers. It may identify its users by cookies, and have a tenant for each host."""
    resolve: Callable[[Scope], str | None] | None = None
    """The user's function that names the scope of a request; None as its result: no scope."""
    client_keys: tuple[ClientKey, ...] = field(default=(), repr=False)
    trusted_proxies: tuple[str, ...] = ()
    """The addresses and networks whose scope header is believed."""
    key_headers: tuple[bytes, ...] = ()
    """Headers that belong in the cache key, in lower case."""
    ignore_headers: tuple[bytes, ...] = ()
    """Headers that do not identify the caller."""
    own_keys: frozenset[str] = frozenset()
    """Upstreams that never get a caller's key. They answer every admitted caller."""

    def binds(self, name: bytes) -> bool:
        """Tell whether all callers of a scope have the same value of a header (lower case)."""
        if name in PROTOCOL_HEADERS or name in self.key_headers:
            return True
        if self.resolve is not None or name in self.ignore_headers:
            return False
        if self.scope != "credential":
            return self.scope.lower().encode() == b"header:" + name
        key = name in KEY_HEADERS or (self.wrapped and name == b"cookie")
        return key or tells_callers_apart(name, include_host=self.wrapped)


class Caller(NamedTuple):
    """The sender of a request, as its headers and query name it."""

    key: bytes | None
    """Its keys, and its cookies if an app answers; None if it has none."""
    whole: bytes
    """Keys, and every other header by which a provider could tell callers apart."""
    query: bytes = b""
    """The parameters of the query by which a provider could tell callers apart."""
    admitted_by: bytes | None = None
    """The client key that let it in; None: no such key is needed."""

    @property
    def person(self) -> bytes | None:
        """The key that identifies one person. Further keys of the request could be invented."""
        return self.key if self.admitted_by is None else self.admitted_by


class CallerHashes(msgspec.Struct, frozen=True, gc=False):
    """The hashes that name the sender of a request."""

    scope: str
    """The callers that share answers with this one."""
    principal: str
    """The person that a label counts for: a key, and a user within one key."""
    tenant: str
    """The caller for fair queues: the scope and the key."""
    exact_caller: str
    """The exact caller: the tenant, its subdivision and its user."""
    holder: str
    """The credentials that upstreams must have accepted before this caller reads shared answers;
    "" unless all callers share answers."""


def credential_of(headers: Headers, query_string: bytes, *, include_cookies: bool) -> bytes | None:
    """Return the bytes that identify the caller: key headers, ``?key=`` and, if asked, cookies.

    None if the request has none of them.
    """
    found = [
        name + b"\0" + value
        for name, value in headers
        if name in KEY_HEADERS or (include_cookies and name == b"cookie")
    ]
    if query_string:
        found += [b"key\0" + value for value in _keys_in(query_string)]
    return b"\n".join(sorted(found)) or None


def check_client_key(headers: Headers, query_string: bytes, keys: Sequence[ClientKey]) -> str:
    """Return the caller's name; "": it has none.

    Raises Unauthorized unless a key header, or ``?key=``, has one of ``keys``. If ``keys`` is
    empty, every caller may come in.
    """
    if not keys:
        return ""
    given = _keys_of(headers, query_string)
    if not given:
        raise Unauthorized("no API key: send one of server.client_keys as a Bearer token")
    found = _matching(given, keys)
    if not found:
        raise Unauthorized("this API key is not one of server.client_keys")
    return found[0].name


def _keys_of(headers: Headers, query_string: bytes) -> list[bytes]:
    given = [_without_scheme(value) for name, value in headers if name in KEY_HEADERS]
    return given + _keys_in(query_string)


def _matching(given: Sequence[bytes], keys: Sequence[ClientKey]) -> list[ClientKey]:
    # Each is compared with all keys, so that the time reveals nothing.
    return [
        each for candidate in given for each in keys if hmac.compare_digest(each.key, candidate)
    ]


@dataclass(frozen=True)
class AccessControl:
    """Admits or refuses requests by their headers, before anything else is read.

    ``origins`` are the rules for web pages; None if an app around us has its own rules, or if a
    key is needed.
    """

    client_keys: Sequence[ClientKey] = field(default=(), repr=False)
    origins: OriginRules | None = None

    def admit(self, scope: Scope) -> str:
        """Return the name of the caller's key; "": it has none.

        Raises Unauthorized or Forbidden unless the request may come in.
        """
        keys, headers = self.client_keys, scope["headers"]
        name = check_client_key(tuple(headers), scope["query_string"], keys) if keys else ""
        if self.origins is not None and (why := self.origins.refusal(headers)):
            raise Forbidden(why)
        return name


def _without_scheme(value: bytes) -> bytes:
    """Remove ``Bearer`` from a key, in upper or lower case (RFC 9110, 11.1)."""
    scheme, _, key = value.partition(b" ")
    return (key if scheme.lower() == b"bearer" else value).strip()


def _keys_in(query_string: bytes) -> list[bytes]:
    """Return the values of ``key``, in which Gemini's clients may send their keys."""
    if b"key=" not in query_string:
        return []
    pairs = parse_qsl(query_string.decode("latin-1"))
    return [value.encode() for name, value in pairs if name == "key"]


class AcceptedCredentials:
    """The callers (by hash) whose keys were accepted lately, each with its upstream."""

    def __init__(self, clock: Callable[[], float], capacity: int = 100_000) -> None:
        self._clock = clock
        self._seen: Latest[tuple[str, str], float] = Latest(capacity)

    def accept(self, holder: str, upstream: str) -> None:
        """Note that an upstream answered a caller."""
        self._seen[holder, upstream] = self._clock()

    def reject(self, holder: str, upstream: str) -> None:
        """Note that an upstream refused a caller's key (401 or 403)."""
        self._seen.pop((holder, upstream), None)

    def note(self, holder: str, upstream: str, status: int) -> None:
        """Note whether an upstream's status accepts or refuses a caller's key, if it says so."""
        if 200 <= status < 300:
            self.accept(holder, upstream)
        elif status in (401, 403):
            self.reject(holder, upstream)

    def __contains__(self, pair: tuple[str, str]) -> bool:
        seen = self._seen.get(pair)
        return seen is not None and self._clock() - seen < ACCEPTED_FOR_S


class Callers:
    """Finds the sender of a request, and the scope whose answers it may read."""

    def __init__(
        self, sharing: SharingOptions, accepted: AcceptedCredentials, secret: bytes
    ) -> None:
        self._sharing = sharing
        self._accepted = accepted
        self._secret = secret
        kind, _, name = sharing.scope.partition(":")
        self._scope_header = name.lower().encode() if kind == "header" else b""
        self._trusted = tuple(ip_network(net, strict=False) for net in sharing.trusted_proxies)
        self._by_credential = sharing.resolve is None and sharing.scope == "credential"
        self._keys = {*KEY_HEADERS, *([b"cookie"] if sharing.wrapped else [])}
        # Headers in the cache key already keep callers apart.
        self._silent = frozenset(
            (*sharing.key_headers, *sharing.ignore_headers, self._scope_header)
        )
        self._splits = SplittingHeaders()
        self._hinted = False
        self._known_hashes: dict[tuple[object, ...], CallerHashes] = {}
        self.read_scopes = bool(sharing.resolve or self._scope_header)
        """``identify`` reads more than the headers of a request, so it must see each request."""

    def renew(self, secret: bytes) -> bool:
        """Use the store's present secret for the names of scopes; return whether it is new.

        With another secret all names differ, so answers under the old names are out of reach.
        """
        if secret == self._secret:
            return False
        self._secret = secret
        self._known_hashes.clear()
        return True

    def reads(self, name: bytes) -> bool:
        """Tell whether a header can identify the caller."""
        sharing = self._sharing
        if name in self._keys or name == self._scope_header:
            return name not in sharing.ignore_headers
        if tells_address(name):
            return name not in self._silent and (sharing.anonymous or sharing.scope == "shared")
        return self._counts(name)

    def caller(self, headers: Headers, query_string: bytes) -> Caller:
        """Return the caller. Addresses count only without a key."""
        sharing = self._sharing
        known = tuple(pair for pair in headers if pair[0] not in sharing.ignore_headers)
        if any(name == b"cookie" for name, _ in known):
            known = tuple(_with_identifying_cookies(known))
        key = credential_of(known, query_string, include_cookies=sharing.wrapped)
        others = [pair for pair in known if pair[0] not in self._keys and self._counts(pair[0])]
        if others and not sharing.wrapped:  # a wrapped app may keep its own state for a session id
            others = without_agent_session(others)
        if self._by_credential or sharing.scope == "shared":
            self._splits.note(others)
        if key is None:
            others += [pair for pair in known if tells_address(pair[0]) and self.reads(pair[0])]
        first = b"anonymous" if key is None else key
        whole = b"\n".join([first, *sorted(n + b"\0" + v for n, v in others)])
        admitted = _matching(_keys_of(headers, query_string), sharing.client_keys)
        admitted_by = admitted[0].key if admitted else None
        return Caller(key, whole, identifying_query(query_string), admitted_by)

    def _counts(self, name: bytes) -> bool:
        return name not in self._silent and tells_callers_apart(
            name, include_host=self._sharing.wrapped
        )

    def identify(self, scope: Scope, headers: Headers, caller: Caller) -> bytes | None:
        """Return bytes that identify the callers who may share this request's answer, or None."""
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
            found = None if caller.key is None and not sharing.anonymous else caller.whole
        if found is None and not self._hinted:
            self._hinted = True
            logger.warning("requests %s", _why_unknown(sharing))
        return found

    def hashes_of(
        self,
        identity: bytes,
        caller: Caller,
        subdivision: bytes | None,
        user: str | None,
        place: bytes | None,
    ) -> CallerHashes:
        """Return the hashes of a request's sender.

        They are remembered, unless the caller sends a lot, so each is computed once.
        """
        asking = (identity, caller, subdivision, user, place)
        hashes = self._known_hashes.get(asking)
        if hashes is None:
            tenant = self.tenant(identity, caller)
            hashes = CallerHashes(
                scope=self.scope_name(identity, subdivision, user),
                principal=self.principal(caller, user),
                tenant=tenant,
                exact_caller=self.exact_caller(tenant, subdivision, user),
                holder=self.holder(caller, place),
            )
            given = (identity, caller.whole, caller.query, subdivision, user)
            if sum([len(each) for each in given if each]) <= MEMO_BYTES:
                if len(self._known_hashes) >= MEMO_SCOPES:
                    self._known_hashes.clear()
                self._known_hashes[asking] = hashes
        return hashes

    def scope_name(self, identity: bytes, subdivision: bytes | None, user: str | None) -> str:
        """Hash the scope: ``identity``, its ``subdivision``, and the user unless users share."""
        return self._hash(identity, subdivision, None if self._sharing.share_users else user)

    def principal(self, caller: Caller, user: str | None) -> str:
        """Hash the caller, also if all callers share one scope: by key, and by user within one key.

        If several keys share answers, the user does not count, and other headers never count: one
        caller could pretend to be many. For the same reason only the key that let it in counts, if
        one is needed.
        """
        return self._hash(caller.person, None, user if self._by_credential else None)

    def tenant(self, identity: bytes, caller: Caller) -> str:
        """Hash the tenant by scope and key. Tenants take turns in queues.

        Neither ``user`` nor any other header counts: one caller could pretend to be many.
        """
        return self._hash(None if self._by_credential else identity, caller.person, None)

    def holder(self, caller: Caller, place: bytes | None) -> str:
        """Hash the credentials that upstreams must accept; "" unless all callers share answers.

        ``place`` is the method and path if an app answers: it may admit a caller at one place and
        not at another. The query counts, because an upstream may read a key from any parameter. In
        other scopes the query is part of the cache key.
        """
        if self._sharing.scope != "shared":
            return ""
        return self._hash(caller.whole + b"\n?" + caller.query, place, None)

    def readable(self, holder: str, upstreams: frozenset[str]) -> frozenset[str] | None:
        """Return the upstreams whose answers ``holder`` may read; None: all of ``upstreams``.

        A caller may read a shared answer if the answer's upstream would answer this caller, too: it
        has accepted the caller's key, or it never gets callers' keys.
        """
        if not holder:
            return None
        own, accepted = self._sharing.own_keys, self._accepted
        found = frozenset(name for name in upstreams if name in own or (holder, name) in accepted)
        return None if found and found == upstreams else found

    def exact_caller(self, tenant: str, subdivision: bytes | None, user: str | None) -> str:
        """Hash the exact caller: the tenant, its subdivision and the user."""
        return self._hash(tenant.encode(), subdivision, user)

    def _hash(self, identity: bytes | None, subdivision: bytes | None, user: str | None) -> str:
        return scope_of(
            self._secret,
            credential=identity,
            subdivision=subdivision.decode("latin-1") if subdivision is not None else None,
            user=user,
        )

    def _from_trusted_proxy(self, scope: Scope) -> bool:
        client = scope.get("client")
        if not client:
            return False
        try:
            address = ip_address(client[0])
        except ValueError:
            return False
        # A server that listens on "::" gets an IPv4 address in its form for IPv6.
        short = getattr(address, "ipv4_mapped", None) or address
        return any(address in network or short in network for network in self._trusted)


class SplittingHeaders:
    """Warns once about a header that keeps many requests apart, which may be a mistake."""

    def __init__(self) -> None:
        self._values: dict[bytes, set[int]] = {}

    def note(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Count the values of headers that tell callers apart."""
        for name, value in headers:
            if name not in self._values and len(self._values) >= MOST_NAMES:
                continue
            values = self._values.setdefault(name, set())
            if len(values) < MANY_VALUES:
                values.add(hash(value))
                if len(values) == MANY_VALUES:
                    logger.warning(
                        "the header %s came with %d values, and requests that differ in it share "
                        "no answers; if it does not identify the caller, name it in "
                        "cache.ignore_headers",
                        name.decode("latin-1"),
                        MANY_VALUES,
                    )


def _with_identifying_cookies(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers, without cookies that cannot identify the caller."""
    for name, value in headers:
        if name != b"cookie":
            yield name, value
        elif identifying := identifying_cookies(value):
            yield name, identifying


def _why_unknown(sharing: SharingOptions) -> str:
    """Say why nothing is cached for callers without an identity."""
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
