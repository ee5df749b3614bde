"""Picks the upstream of a request: by its route, or by its model and its dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.dialects.documents import DOCUMENTS
from headstart.dialects.registry import DIALECTS, form_of
from headstart.errors import NoUpstream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.dialects.documents import DocumentForm
    from headstart.interfaces import Candidate
    from headstart.middleware.concurrency import Spawn
    from headstart.types import Call, ChatRequest


@dataclass(frozen=True)
class Provider:
    """An ``[[upstream]]`` as the router sees it."""

    name: str
    base_url: str
    dialect: str
    """Name of the wire format into which requests are translated."""
    models: Mapping[str, str]
    """The provider's own names of models by those that callers may use."""
    named: frozenset[str]
    """Models that its settings name."""
    known: frozenset[str]
    """Models that it is known to have."""
    candidates: Mapping[str, Candidate]
    """Its candidates by ``[[route]]``; "" for routes that do not name it."""
    relay: Candidate
    """Its candidate for relayed requests."""
    own_keys: frozenset[str] = frozenset()
    """Its names (one for each key) under which it never gets a caller's key."""
    further: frozenset[str] = frozenset()
    """Names of the other wire formats that it understands."""
    weights: Callable[[str], str] = str
    """Returns the name of a model's weights, which are the same whoever serves them."""
    connect_early: Callable[[Spawn], None] = lambda _: None
    """Opens a connection for a call that is about to come."""

    def speaks(self, dialect: str) -> bool:
        """Tell whether requests in a dialect need no translation."""
        return dialect == self.dialect or dialect in self.further

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
    """The candidate that answers; None: the model decides."""
    relays: Mapping[str, Candidate] = field(default_factory=dict)
    """The candidates for relayed requests, by the dialect that their upstreams speak."""
    deadline_s: float | None = None
    early_200_s: float | None = None
    """When a streaming client is told 200 though no content has come."""
    predicts: bool = False
    """Upstreams are told the answer to a similar prompt."""
    members: tuple[str, ...] = ()
    """Names of its upstreams, the first to ask for what nobody reads first."""
    rescued: Callable[[Candidate], Candidate] | None = None
    """Puts a rescue around a candidate, as the route has it; None: there is no upstream."""
    assumes_equal: bool = False
    """The operator says that the models of its upstreams are equal."""


NO_ROUTE = RouteTaken()
MEMO_MODELS = 1024
LONGEST_NAME = 128
"""Longest name of a model that is remembered, because callers may send any name."""


class Answerer(NamedTuple):
    """The candidate that answers for a model."""

    candidate: Candidate
    identity: str
    """Names upstreams and models for the cache key."""
    names: frozenset[str]
    """The upstreams that may answer."""
    several: bool
    """There are several upstreams, so a conversation should stay with one of them."""
    avoid: frozenset[str] = frozenset()
    """Upstreams of the candidate that may not answer."""


class Router:
    """Picks upstreams. ``routes`` are the ``[[route]]`` tables by name, "" for no route.

    ``names_conversations``: calls carry the digest of their conversation also where one upstream
    alone can answer.
    """

    def __init__(
        self,
        providers: Sequence[Provider],
        routes: Mapping[str, RouteTaken],
        *,
        names_conversations: bool = False,
    ) -> None:
        self.routes = routes
        self._names_conversations = names_conversations
        self.providers = providers
        """All upstreams, in the order of the settings."""
        self._answerers: dict[tuple[str, str, str], Answerer] = {}

    def pick(self, dialect: str, model: str | None, rule: str) -> Candidate:
        """Return the candidate for a request that takes ``rule``. Raises NoUpstream.

        ``model`` is None for a body that we cannot read.
        """
        named = self.routes.get(rule, NO_ROUTE).candidate
        if named is not None and (model is not None or self._all_speak(named, dialect)):
            return named
        candidates = self._choose(dialect, model).candidates
        return candidates.get(rule) or candidates[""]

    def answerer(self, dialect: str, model: str, rule: str) -> Answerer:
        """Return the candidate for a model, worked out once. Raises NoUpstream."""
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
        """Return the candidate for a call, and the call that it gets. Raises NoUpstream."""
        request = call.request
        if call.dialect in DOCUMENTS:
            model = "" if request is None else request.model
            answerer = self.answerer(call.dialect, model, rule)
            return answerer.candidate, msgspec.structs.replace(call, avoid=answerer.avoid)
        if request is None:
            candidate = self.pick(call.dialect, None, rule)
        else:
            answerer = self.answerer(call.dialect, request.model, rule)
            candidate = answerer.candidate
            if (answerer.several or self._names_conversations) and not call.affinity:
                call = msgspec.structs.replace(call, affinity=conversation(scope, request))
        if self.routes.get(rule, NO_ROUTE).early_200_s is not None:
            # The client gets the status before the answer's encoding is known.
            plain = tuple(pair for pair in call.headers if pair[0] != b"accept-encoding")
            call = msgspec.structs.replace(call, headers=plain)
        return candidate, call

    def answerers(self, dialect: str, model: str, rule: str) -> tuple[str, frozenset[str]]:
        """Name the candidate for the cache key, and all upstreams that may answer.

        Raises NoUpstream.
        """
        answerer = self.answerer(dialect, model, rule)
        return answerer.identity, answerer.names

    @property
    def own_keys(self) -> frozenset[str]:
        """All upstreams that never get a caller's key."""
        return frozenset().union(*(each.own_keys for each in self.providers))

    def relayed(self, dialect: str, model: str, rule: str) -> Candidate:
        """Return the candidate for a request of a path that is no chat path. Raises NoUpstream.

        Nothing translates such a request, so only upstreams of its dialect get it: those of the
        route, or else the one that is meant for the model, or else the first one. ``model`` is ""
        for a request that names none.
        """
        taken = self.routes.get(rule, NO_ROUTE)
        if taken.candidate is None:
            return self._choose(dialect, model, translates=False).relay
        if dialect in taken.relays:
            return taken.relays[dialect]
        raise _nobody(rule, dialect)

    def untranslated(self, dialect: str, model: str, rule: str) -> Candidate | None:
        """Return the candidate for a request that goes where a chat with this model goes.

        None: the chat would be translated.
        """
        taken = self.routes.get(rule, NO_ROUTE)
        if taken.candidate is not None:
            return taken.relays.get(dialect)
        chosen = self._choose(dialect, model)
        return chosen.relay if chosen.speaks(dialect) else None

    def answering(self, dialect: str, model: str, rule: str) -> list[Provider]:
        """Return the upstreams that may answer a chat, the first to be asked first."""
        names = self.pick(dialect, model, rule).names
        order = self.routes.get(rule, NO_ROUTE).members
        able = [each for each in self.providers if each.candidates[""].names & names]
        return sorted(able, key=lambda each: order.index(each.name) if each.name in order else -1)

    def tells_models_apart(self, dialect: str) -> bool:
        """Tell whether the model of a relayed request has a say in who answers, and how."""
        able = [each for each in self.providers if each.speaks(dialect)]
        return len(able) > 1 or any(each.named for each in able)

    def _find_answerer(self, dialect: str, model: str, rule: str) -> Answerer:
        document = DOCUMENTS.get(dialect)
        if document is not None:
            return self._find_equals(document, model, rule)
        candidate = self.pick(dialect, model, rule)
        names = candidate.names
        members = (
            f"{each.name} {each.base_url} {each.real_name(model)}"
            for each in self.providers
            if each.name in names
        )
        identity = "\n".join((candidate.identity, *members))
        return Answerer(candidate, identity, names, several=len(names) > 1)

    def _find_equals(self, form: DocumentForm, model: str, rule: str) -> Answerer:
        """Return the candidate for a call that is no chat, without upstreams of other models.

        The vectors of two models cannot be compared, and no request is translated.
        """
        taken = self.routes.get(rule, NO_ROUTE)
        by_name = {each.name: each for each in self.providers}
        named = [by_name[name] for name in taken.members]
        able = [each for each in named if any(map(each.speaks, form.spoken_by))]
        candidate = taken.candidate
        if candidate is not None and not able:
            raise _nobody(rule, form.spoken_by[0])
        if candidate is None:
            chosen = self._first_to_speak(form, model)
            able = [chosen]
            candidate = chosen.candidates.get(rule) or chosen.candidates[""]
        weights = able[0].weights(able[0].real_name(model))
        equals = [
            each
            for each in able
            if taken.assumes_equal or each.weights(each.real_name(model)) == weights
        ]
        answering = frozenset[str]().union(*(each.candidates[""].names for each in equals))
        members = (f"{each.name} {each.base_url} {each.real_name(model)}" for each in equals)
        avoid = candidate.names - answering
        return Answerer(
            candidate,
            "\n".join(sorted(members)),
            candidate.names - avoid,
            several=False,
            avoid=avoid,
        )

    def _first_to_speak(self, form: DocumentForm, model: str) -> Provider:
        """Return the provider meant for a model, among those with the paths of these calls."""
        for dialect in form.spoken_by:
            able = [each for each in self.providers if each.speaks(dialect)]
            if able:
                return min(able, key=lambda each: [not claim for claim in each.claims(model)])
        return self._choose(form.spoken_by[0], None)  # raises, as nobody speaks it

    def _all_speak(self, candidate: Candidate, dialect: str) -> bool:
        """Return whether all its upstreams speak a dialect, so that they can get any body."""
        members = [each for each in self.providers if each.name in candidate.names]
        return all(each.speaks(dialect) for each in members)

    def _choose(self, dialect: str, model: str | None, *, translates: bool = True) -> Provider:
        """Return the provider meant for the model, else one that has it, else of the dialect.

        Without any of these it is the first provider, and the request is translated, which needs a
        body that we can read. Among equals the caller's dialect counts first, an upstream's main
        dialect before its further ones, then the order of the settings.
        """

        def rank(each: Provider) -> tuple[bool, ...]:
            foreign = (not each.speaks(dialect), each.dialect != dialect)
            return (*(not claim for claim in each.claims(model or "")), *foreign)

        translates = translates and model is not None
        able = [each for each in self.providers if translates or each.speaks(dialect)]
        if able:
            return min(able, key=rank)
        raise NoUpstream(
            "no upstream takes this request: add an [[upstream]] with dialect = "
            f'"{_setting(dialect)}"'
        )


def _setting(dialect: str) -> str:
    return DIALECTS[dialect].setting if dialect in DIALECTS else dialect


def _nobody(rule: str, dialect: str) -> NoUpstream:
    return NoUpstream(
        f"route {rule!r} has no upstream for this path, whose requests are not translated: add "
        f'an upstream with dialect = "{_setting(dialect)}" to it'
    )


def conversation(scope: str, request: ChatRequest) -> str:
    """Return a digest that is the same for all turns of one conversation.

    It covers the caller, the system text and the first user message.
    """
    parts = [scope, *form_of(request).opening(request.document)]
    return blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()
