"""Who answers a request: its route's strategy, else whoever knows its model or its dialect."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.errors import NoUpstream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headstart.interfaces import Candidate
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.types import Call, ChatRequest, Headers


@dataclass(frozen=True)
class Provider:
    """An ``[[upstream]]`` as the router sees it."""

    name: str
    base_url: str
    dialect: str
    """Its wire format."""
    models: Mapping[str, str]
    """The provider's own names of models by those that callers may use."""
    named: frozenset[str]
    """Models that its settings say it is to be asked for."""
    known: frozenset[str]
    """Models that it is known to have."""
    candidates: Mapping[str, Candidate]
    """Who answers for it, by ``[[route]]``; "" where a route says nothing of it."""
    relay: HTTPUpstream
    """Takes what is only relayed."""
    own_keys: frozenset[str] = frozenset()
    """Those of its names, one for each key, under which it never gets a caller's key."""

    def real_name(self, model: str) -> str:
        """Return the provider's own name of a model."""
        model = model.removeprefix(self.name + "/")
        return self.models.get(model, model)

    def claims(self, model: str) -> tuple[bool, bool]:
        """Return whether it is meant for a model, and whether it is known to have it."""
        return model in self.named or model.startswith(self.name + "/"), model in self.known


@dataclass(frozen=True)
class RouteTaken:
    """A ``[[route]]``."""

    candidate: Candidate | None = None
    """Who answers; None: whom the model asks for."""
    deadline_s: float | None = None
    early_200_s: float | None = None
    """When a streaming client is told 200 though no content has come."""
    predicts: bool = False
    """Upstreams are told the answer to a similar prompt."""


NO_ROUTE = RouteTaken()
MEMO_MODELS = 1024
LONGEST_NAME = 128
"""Of a model that is remembered: callers may name any."""


class Answerer(NamedTuple):
    """Who answers for a model."""

    candidate: Candidate
    identity: str
    """Names them: others, or another model behind an alias, are another cache key."""
    several: bool
    """There is more than one, so a conversation has to be kept with its own."""


class Router:
    """Picks upstreams. ``routes`` are the ``[[route]]`` tables by name, "" for no route."""

    def __init__(self, providers: Sequence[Provider], routes: Mapping[str, RouteTaken]) -> None:
        self.routes = routes
        self._providers = providers
        self._answerers: dict[tuple[str, str, str], Answerer] = {}

    def pick(self, dialect: str, model: str | None, rule: str) -> Candidate:
        """Return who is to answer a request that takes ``rule``. Raises NoUpstream.

        ``model`` is None for a body that we cannot read.
        """
        named = self.routes.get(rule, NO_ROUTE).candidate
        if named is not None and (model is not None or self._all_speak(named, dialect)):
            return named
        candidates = self._choose(dialect, model).candidates
        return candidates.get(rule) or candidates[""]

    def answerer(self, dialect: str, model: str, rule: str) -> Answerer:
        """Return who is to answer for a model, worked out once. Raises NoUpstream."""
        asked = (dialect, model, rule)
        answerer = self._answerers.get(asked)
        if answerer is None:
            answerer = self._find_answerer(dialect, model, rule)
            if len(self._answerers) >= MEMO_MODELS:
                self._answerers.clear()
            if len(model) <= LONGEST_NAME:
                self._answerers[asked] = answerer
        return answerer

    def assign(self, call: Call, scope: str, rule: str) -> tuple[Candidate, Call]:
        """Return who is to answer a call, and the call as it needs it. Raises NoUpstream."""
        request = call.request
        if request is None:
            candidate = self.pick(call.dialect, None, rule)
        else:
            candidate, _, several = self.answerer(call.dialect, request.model, rule)
            if several:
                call = msgspec.structs.replace(call, affinity=conversation(scope, request))
        if self.routes.get(rule, NO_ROUTE).early_200_s is not None:
            # Nobody knows by then how the answer is encoded.
            plain = tuple(pair for pair in call.headers if pair[0] != b"accept-encoding")
            call = msgspec.structs.replace(call, headers=plain)
        return candidate, call

    def identity(self, dialect: str, model: str, rule: str) -> str:
        """Name who would answer, for the cache key. Raises NoUpstream."""
        return self.answerer(dialect, model, rule).identity

    def names(self, dialect: str, model: str, rule: str) -> frozenset[str]:
        """Return all upstreams that may answer. Raises NoUpstream."""
        return self.answerer(dialect, model, rule).candidate.names

    @property
    def own_keys(self) -> frozenset[str]:
        """All upstreams that never get a caller's key."""
        return frozenset().union(*(each.own_keys for each in self._providers))

    def relay(self, path: bytes, headers: Headers) -> HTTPUpstream:
        """Return who gets what is only relayed: the first upstream of its dialect.

        Two dialects have a ``/v1/models``, so a header of Anthropic's tells whom the caller means.
        Raises NoUpstream.
        """
        return self._choose(_dialect_of(path, headers), None).relay

    def _find_answerer(self, dialect: str, model: str, rule: str) -> Answerer:
        candidate = self.pick(dialect, model, rule)
        names = candidate.names
        members = (
            f"{each.name} {each.base_url} {each.real_name(model)}"
            for each in self._providers
            if each.name in names
        )
        identity = "\n".join((candidate.identity, *members))
        return Answerer(candidate, identity, several=len(names) > 1)

    def _all_speak(self, candidate: Candidate, dialect: str) -> bool:
        """Can a body that we cannot read go to any of its upstreams as it is?"""
        members = [each for each in self._providers if each.name in candidate.names]
        return all(each.dialect == dialect for each in members)

    def _choose(self, dialect: str, model: str | None) -> Provider:
        """Return the provider meant for the model, else one that has it, else of the dialect.

        Without any of these it is the first that can be translated to, which needs a body that we
        can read. Among equals the caller's dialect counts first, then the order of the settings.
        """

        def rank(each: Provider) -> tuple[bool, ...]:
            return (*(not claim for claim in each.claims(model or "")), each.dialect != dialect)

        able = [each for each in self._providers if model is not None or each.dialect == dialect]
        if able:
            return min(able, key=rank)
        raise NoUpstream(
            "no upstream takes this request: add an [[upstream]] with "
            f'dialect = "{_SETTING.get(dialect, dialect)}"'
        )


_SETTING = {
    "openai-chat": "openai",
    "anthropic-messages": "anthropic",
    "gemini-generate": "gemini",
}
"""What ``upstream.dialect`` calls a wire format."""


def _dialect_of(path: bytes, headers: Headers) -> str:
    if path.startswith(b"/v1beta/") or any(name == b"x-goog-api-key" for name, _ in headers):
        return "gemini-generate"
    anthropic = (path + b"/").startswith(b"/v1/messages/") or any(
        name == b"anthropic-version" for name, _ in headers
    )
    return "anthropic-messages" if anthropic else "openai-chat"


def conversation(scope: str, request: ChatRequest) -> str:
    """Return a digest of who talks about what: all turns of one conversation have the same.

    A conversation is known by its caller, its system text and its first message.
    """
    document = request.document
    parts: list[Any] = [scope, document.get("system"), document.get("systemInstruction")]
    for name in ("messages", "contents"):
        messages = document.get(name)
        if isinstance(messages, list):
            parts += _opening(messages)
    return blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()


def _opening(messages: list[Any]) -> list[Any]:
    for place, message in enumerate(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            return messages[: place + 1]
    return messages[:1]
