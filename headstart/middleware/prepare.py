"""From a request's bytes to what decides about it: parse, identity, admission, key."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from headstart.decisions import Terms
from headstart.middleware.identity import (
    CREDENTIAL_HEADERS,
    AcceptedCredentials,
    check_client_key,
    credential_of,
)
from headstart.middleware.upstreams.headers import OWN_PREFIX
from headstart.observe import logger
from headstart.policies.directives import Directives, parse_directives
from headstart.policies.freshness import Lifetimes, QuestionClass, question_class
from headstart.policies.key import KeyContext, chat_key, keyed_headers, raw_key, scope_of
from headstart.policies.questions import NOT_FOUND, find_question
from headstart.policies.terms import (
    RouteRule,
    decoded,
    first_rule,
    requested_max_error,
    terms_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.interfaces import AdmissionPolicy
    from headstart.middleware.asgi_types import Scope
    from headstart.middleware.endpoints import Route
    from headstart.policies.questions import Question
    from headstart.types import CacheKey, ChatRequest, Headers

MEMO_BYTES = 8 * 1024 * 1024
MEMO_BODY_BYTES = 64 * 1024
MEMO_SCOPES = 4096
_READ_HEADERS = frozenset(
    (*CREDENTIAL_HEADERS, b"cookie", b"cache-control", b"content-encoding")
) | {b"anthropic-version", b"anthropic-beta", b"openai-organization", b"openai-project"}

_ANY_TERMS = Terms()
_FOREVER = Lifetimes()


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request understood. ``key`` is None when the cache must not be asked (``bypass``)."""

    request: ChatRequest | None
    key: CacheKey | None
    directives: Directives
    scope: str = ""
    bypass: str | None = None
    semantic_refusal: str | None = None
    """Why another prompt's answer must not serve, so that only an exact repeat may."""
    terms: Terms = _ANY_TERMS
    ttl_s: float | None = None
    """Longest life of an answer to it, stored now or before; None: without end."""


class Preparer:
    """Prepares requests; equal ones are prepared once (a bounded memo by their own bytes).

    ``rules`` are the ``[[route]]`` tables in order, ``max_error`` the target where they set none,
    ``learning`` names the encoder and guards that a learning domain belongs to, and
    ``lifetimes`` say how long answers are kept.
    """

    def __init__(
        self,
        sharing: SharingOptions,
        admission: AdmissionPolicy,
        accepted: AcceptedCredentials,
        *,
        secret: bytes,
        upstream: Callable[[ChatRequest], str],
        wrapped: bool,
        rules: Sequence[RouteRule] = (),
        max_error: float | None = None,
        learning: str = "",
        lifetimes: Lifetimes = _FOREVER,
    ) -> None:
        self._sharing = sharing
        self._admission = admission
        self._accepted = accepted
        self._secret = secret
        self._upstream = upstream
        self._wrapped = wrapped
        self._rules = rules
        self._max_error = max_error
        self._learning = learning
        self._lifetimes = lifetimes
        matched = {name for rule in rules for name, _ in rule.headers}
        self._read = _READ_HEADERS.union(sharing.key_headers, matched)
        if sharing.scope.startswith("header:"):
            self._scope_header = sharing.scope.removeprefix("header:").lower().encode()
            self._read |= {self._scope_header}
        else:
            self._scope_header = b""
        self._trusted = tuple(ip_network(net, strict=False) for net in sharing.trusted_proxies)
        self._memo: OrderedDict[tuple[object, ...], Prepared] = OrderedDict()
        self._memo_size = 0
        self._hinted = False
        self._scopes: dict[tuple[bytes, bytes | None, str | None], str] = {}

    def prepare(self, route: Route, scope: Scope, body: bytes) -> Prepared:
        """Return what the body and headers mean. Raises InvalidRequest or Unauthorized."""
        read, prefix = self._read, OWN_PREFIX
        headers: Headers = tuple(
            [(n, v) for n, v in scope["headers"] if n in read or n.startswith(prefix)]
        )
        identity = self._identity(scope, headers)
        path, query = scope.get("raw_path"), scope["query_string"]
        memo_key = (scope["method"], route.name, path, query, headers, identity, body)
        prepared = self._memo.get(memo_key)
        if prepared is None:
            check_client_key(headers, self._sharing.client_keys)
            prepared = self._prepare(route, scope, headers, identity, body)
            self._remember(memo_key, prepared, len(body))
        else:
            self._memo.move_to_end(memo_key)
        if self._sharing.scope == "shared" and not self._proven(headers):
            return replace(prepared, key=None, bypass=prepared.bypass or "unproven-key")
        return prepared

    def _remember(self, memo_key: tuple[object, ...], prepared: Prepared, size: int) -> None:
        if size > MEMO_BODY_BYTES:
            return
        self._memo[memo_key] = prepared
        # A decoded document weighs several times its text.
        self._memo_size += 8 * size + 2048
        while self._memo_size > MEMO_BYTES:
            key, _ = self._memo.popitem(last=False)
            self._memo_size -= 8 * len(key[-1]) + 2048  # type: ignore[arg-type]

    def credential_scope(self, headers: Headers) -> str | None:
        """Return the hash under which a credential is noted as accepted, if answers are shared."""
        if self._sharing.scope != "shared":
            return None
        credential = credential_of(headers, b"", cookies=self._sharing.cookies)
        return scope_of(self._secret, credential=credential)

    def _proven(self, headers: Headers) -> bool:
        if self._sharing.client_keys or self._sharing.anonymous:
            return True
        return self.credential_scope(headers) in self._accepted

    def _identity(self, scope: Scope, headers: Headers) -> bytes | None:
        """Return the bytes that identify who may share this answer, or None."""
        sharing = self._sharing
        if sharing.resolve is not None:
            named = sharing.resolve(scope)
            return None if named is None else b"scope\0" + named.encode()
        if sharing.scope == "shared":
            return b"shared"
        if self._scope_header:
            if not self._from_trusted_proxy(scope):
                return None
            values = [value for name, value in headers if name == self._scope_header]
            return b"header\0" + values[0] if len(values) == 1 else None
        found = credential_of(headers, scope["query_string"], cookies=sharing.cookies)
        return b"anonymous" if found is None and sharing.anonymous else found

    def _from_trusted_proxy(self, scope: Scope) -> bool:
        client = scope.get("client")
        if not client:
            return False
        try:
            address = ip_address(client[0])
        except ValueError:
            return False
        return any(address in network for network in self._trusted)

    def _hint_at_identity(self) -> None:
        """Say once why nothing is cached for callers that nobody knows."""
        if not self._hinted:
            self._hinted = True
            logger.warning(
                "requests without a credential bypass the cache: send a key header, or set "
                "cache.scope or the middleware's scope="
            )

    def _scope_name(self, identity: bytes, subdivision: bytes | None, user: str | None) -> str:
        """Hash who is asking; callers repeat, so the last hashes are kept."""
        asking = (identity, subdivision, user)
        name = self._scopes.get(asking)
        if name is None:
            name = scope_of(
                self._secret,
                credential=identity,
                subdivision=subdivision.decode("latin-1") if subdivision is not None else None,
                user=user,
            )
            if len(self._scopes) >= MEMO_SCOPES:
                self._scopes.clear()
            self._scopes[asking] = name
        return name

    def _prepare(
        self, route: Route, scope: Scope, headers: Headers, identity: bytes | None, body: bytes
    ) -> Prepared:
        found = dict(headers)
        directives = parse_directives(headers)
        asked = requested_max_error(headers)
        if b"content-encoding" in found:
            return Prepared(None, None, directives, bypass="encoded-body")
        request = route.parse(body)
        if identity is None:
            self._hint_at_identity()
            return Prepared(request, None, directives, bypass="no-identity")
        subdivision = found.get(b"x-headstart-scope")
        user = None if self._sharing.share_users else request.user
        scope_name = self._scope_name(identity, subdivision, user)
        refusal = "no-store" if directives.no_store else None
        if refusal is None and route.dialect is not None:
            refusal = self._admission.refuse_lookup(request)
        if refusal is not None:
            return Prepared(request, None, directives, scope_name, refusal)
        rule = first_rule(self._rules, model=request.model, path=route.name, headers=headers)
        question = _question(route, rule, request, found.get(b"x-headstart-query"))
        target = self._max_error if rule.max_error is None else rule.max_error
        parties = (scope_name, route.name, rule.name)
        terms = terms_of(parties, (target, asked), self._learning)
        named = None if question is NOT_FOUND else question
        asked_text = request.query if named is None else named.text
        kind = question_class(asked_text or "")
        return Prepared(
            request=request,
            key=self._key(route, scope, headers, request, scope_name, named),
            directives=directives,
            scope=scope_name,
            semantic_refusal=self._refuse_semantic(rule, request, question, kind),
            terms=terms,
            ttl_s=self._lifetimes.of(kind, rule.ttl_s),
        )

    def _key(
        self,
        route: Route,
        scope: Scope,
        headers: Headers,
        request: ChatRequest,
        scope_name: str,
        question: Question | None,
    ) -> CacheKey:
        custom = "custom" if scope["method"] == "POST" else f"custom {scope['method']}"
        context = KeyContext(
            dialect=route.dialect.name if route.dialect else custom,
            path=scope.get("raw_path") or scope["path"].encode(),
            upstream=self._upstream(request),
            query_string=scope["query_string"],
            headers=keyed_headers(headers, self._sharing.key_headers),
            wrapped_app=self._wrapped,
        )
        if question is not None:
            request = route.without(question.text, request)
        if route.dialect is not None:
            return chat_key(request, scope=scope_name, context=context, question=question)
        return raw_key(
            request.document["rest"],
            query=request.query,
            scope=scope_name,
            context=context,
            question=question,
        )

    def _refuse_semantic(
        self, rule: RouteRule, request: ChatRequest, question: Question | None, kind: QuestionClass
    ) -> str | None:
        if not rule.semantic:
            return "exact-only"
        if question is NOT_FOUND:
            return "query-not-found"
        if question is not None:
            request = msgspec.structs.replace(request, query=question.text)
        refusal = self._admission.refuse_semantic(request)
        return "live" if refusal is None and kind is QuestionClass.LIVE else refusal


def _question(
    route: Route, rule: RouteRule, request: ChatRequest, header: bytes | None
) -> Question | None:
    """Return the question in the last user text, by caller, route or endpoint."""
    if request.query is None:
        return None
    names: tuple[str, ...] = () if request.question is None else (request.question,)
    pattern = rule.query or route.pattern
    if header is not None:
        plain = decoded(header)
        names = (plain.strip(), unquote(plain).strip())
    elif pattern is not None:
        names = ()
    return find_question(request.query, names=names, pattern=pattern)
