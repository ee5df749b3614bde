"""From a request's bytes to what decides about it: parse, identity, admission, key."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from headstart.decisions import Terms
from headstart.middleware.identity import CREDENTIAL_HEADERS, Callers, check_client_key
from headstart.middleware.upstreams.headers import OWN_PREFIX
from headstart.policies.directives import Directives, parse_directives
from headstart.policies.freshness import Lifetimes, QuestionClass, question_class
from headstart.policies.key import PROTOCOL_HEADERS, KeyContext, chat_key, keyed_headers, raw_key
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
    from headstart.middleware.identity import AcceptedCredentials, SharingOptions
    from headstart.policies.questions import Question
    from headstart.types import CacheKey, ChatRequest, Headers

MEMO_BYTES = 8 * 1024 * 1024
MEMO_BODY_BYTES = 64 * 1024
_READ_HEADERS = PROTOCOL_HEADERS.union(
    CREDENTIAL_HEADERS, (b"cookie", b"cache-control", b"content-encoding")
)

_ANY_TERMS = Terms()
_FOREVER = Lifetimes()


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
    rule: str = ""
    """Name of the ``[[route]]`` that it takes."""


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
        upstream: Callable[[str, ChatRequest, str], str],
        wrapped: bool,
        rules: Sequence[RouteRule] = (),
        max_error: float | None = None,
        learning: str = "",
        lifetimes: Lifetimes = _FOREVER,
    ) -> None:
        self._sharing = sharing
        self._callers = Callers(sharing, accepted, secret)
        self._admission = admission
        self._upstream = upstream
        self._wrapped = wrapped
        self._rules = rules
        self._max_error = max_error
        self._learning = learning
        self._lifetimes = lifetimes
        matched = {name for rule in rules for name, _ in rule.headers}
        self._read = _READ_HEADERS.union(sharing.key_headers, matched, self._callers.reads)
        self._memo: OrderedDict[tuple[object, ...], Prepared] = OrderedDict()
        self._memo_size = 0

    def prepare(self, route: Route, scope: Scope, body: bytes) -> Prepared:
        """Return what the body and headers mean. Raises InvalidRequest or Unauthorized."""
        read, prefix = self._read, OWN_PREFIX
        headers: Headers = tuple(
            [(n, v) for n, v in scope["headers"] if n in read or n.startswith(prefix)]
        )
        identity = self._callers.identify(scope, headers)
        path, query = scope.get("raw_path"), scope["query_string"]
        memo_key = (scope["method"], route.name, path, query, headers, identity, body)
        prepared = self._memo.get(memo_key)
        if prepared is None:
            check_client_key(headers, self._sharing.client_keys)
            prepared = self._prepare(route, scope, headers, identity, body)
            self._remember(memo_key, prepared, len(body))
        else:
            self._memo.move_to_end(memo_key)
        if not self._callers.may_read(headers):
            return replace(prepared, key=None, bypass=prepared.bypass or "unproven-key")
        return prepared

    def credential_scope(self, headers: Headers) -> str | None:
        """Return the hash under which a credential is noted as accepted, if answers are shared."""
        return self._callers.credential_scope(headers)

    def _remember(self, memo_key: tuple[object, ...], prepared: Prepared, size: int) -> None:
        if size > MEMO_BODY_BYTES:
            return
        self._memo[memo_key] = prepared
        # A decoded document weighs several times its text.
        self._memo_size += 8 * size + 2048
        while self._memo_size > MEMO_BYTES:
            key, _ = self._memo.popitem(last=False)
            self._memo_size -= 8 * len(key[-1]) + 2048  # type: ignore[arg-type]

    def _prepare(
        self, route: Route, scope: Scope, headers: Headers, identity: bytes | None, body: bytes
    ) -> Prepared:
        found = dict(headers)
        directives = parse_directives(headers)
        asked = requested_max_error(headers)
        if b"content-encoding" in found:
            return Prepared(None, None, directives, bypass="encoded-body")
        path = scope.get("raw_path") or scope["path"].encode()
        request = route.parse(body, path.partition(b"?")[0], scope["query_string"])
        rule = first_rule(self._rules, model=request.model, path=route.name, headers=headers)
        if identity is None:
            return Prepared(request, None, directives, bypass="no-identity", rule=rule.name)
        scope_name = self._callers.scope_name(
            identity, found.get(b"x-headstart-scope"), request.user
        )
        refusal = "no-store" if directives.no_store else None
        if refusal is None and route.dialect is not None:
            refusal = self._admission.refuse_lookup(request)
        if refusal is not None:
            return Prepared(request, None, directives, scope_name, refusal, rule=rule.name)
        question = _question(route, rule, request, found.get(b"x-headstart-query"))
        target = self._max_error if rule.max_error is None else rule.max_error
        named = None if question is NOT_FOUND else question
        answerer = self._upstream(
            "" if route.dialect is None else route.dialect.name, request, rule.name
        )
        key = self._key(route, scope, headers, request, scope_name, (named, answerer))
        # What single questions taught says nothing about whether histories mean the same.
        kind_of_talk = "question" if key.conversation is None else "conversation"
        parties = (scope_name, route.name, rule.name, kind_of_talk)
        principal = self._callers.principal(headers, scope["query_string"], request.user)
        terms = terms_of(parties, (target, asked), self._learning, principal)
        asked_text = request.query if named is None else named.text
        kind = question_class(asked_text or "")
        return Prepared(
            request=request,
            key=key,
            directives=directives,
            scope=scope_name,
            semantic_refusal=self._refuse_semantic(rule, request, question, kind),
            terms=terms,
            ttl_s=self._lifetimes.of(kind, rule.ttl_s),
            rule=rule.name,
        )

    def _key(
        self,
        route: Route,
        scope: Scope,
        headers: Headers,
        request: ChatRequest,
        scope_name: str,
        named: tuple[Question | None, str],
    ) -> CacheKey:
        """Return its key; ``named`` are the question inside it and whoever would answer it."""
        question, answerer = named
        dialect = "" if route.dialect is None else route.dialect.name
        custom = "custom" if scope["method"] == "POST" else f"custom {scope['method']}"
        context = KeyContext(
            dialect=dialect or custom,
            path=scope.get("raw_path") or scope["path"].encode(),
            upstream=answerer,
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
