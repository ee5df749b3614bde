"""Picks the upstream of a request: by its route, or by its model and dialect; lists models.

For example, there are the upstreams ``openai`` and ``claude``, and no ``[[route]]``. A chat with
the model "claude/sonnet" goes to ``claude``, because the name begins with the upstream's. A chat
with "gpt-5" goes to ``openai`` if its settings, or our table of models, have this model for it. A
chat with any other model goes to the first upstream that speaks the client's dialect.
``_choose_provider`` has these rules. A ``[[route]]`` with upstreams of its own replaces them.

What a request asks for decides what the router returns:

- a chat: ``choose``. An upstream of another dialect is possible, because chats are translated.
- embeddings, and other calls that are no chat: ``choose``. They are never translated.
- a relayed path: ``relayed``, or ``untranslated`` for the count of a prompt's tokens.

``GET /v1/models`` (``ModelLists``) lists the models that routes and upstreams can answer, also
while an upstream is down. The upstreams' own lists are asked for in the background, kept, and asked
for again when they are old. They never decide who answers a request.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec

from headstart.dialects.dialect import Dialect, ListedModel, ModelsForm, UpstreamDialect
from headstart.dialects.registry import DIALECTS, DOCUMENTS, FORMS, DocumentForm, takers_of
from headstart.errors import (
    HeadstartError,
    NoUpstream,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
)
from headstart.middleware.respond import json_headers
from headstart.middleware.upstreams.outgoing import neutral_headers
from headstart.observe import Observer, StageFailed
from headstart.policies.route_rules import RouteRule, first_rule
from headstart.types import (
    UNDECODABLE,
    Call,
    ChatRequest,
    ErrorReported,
    Frozen,
    Headers,
    is_pattern,
    json_or_none,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headstart.interfaces import Candidate, Upstream
    from headstart.middleware.concurrency import Spawn


@dataclass(frozen=True)
class Provider:
    """An ``[[upstream]]`` as the router sees it."""

    name: str
    base_url: str
    dialect: str
    """Name of the wire format into which requests are translated."""
    models: Mapping[str, str]
    """The provider's own names of models, by the names that callers may use."""
    named: frozenset[str]
    """The names of models in its settings."""
    known: frozenset[str]
    """The models that our table of models has for this provider."""
    candidates: Mapping[str, Candidate]
    """Its candidates by ``[[route]]``; "" for routes that do not name it."""
    relay: Candidate
    """Its candidate for relayed requests."""
    assumed: frozenset[str] = frozenset()
    """Names that its preset assumes for a server of the operator. The server's own list of models
    has priority."""
    own_keys: frozenset[str] = frozenset()
    """Its names (one for each key) under which it never gets a caller's key."""
    further: frozenset[str] = frozenset()
    """Names of the other wire formats that it understands."""
    weights: Callable[[str], str] = str
    """Returns the name of a model's weights, which is the same at every provider."""
    connect_early: Callable[[Spawn], None] = lambda _: None
    """Opens a connection for a call that is about to come."""

    def speaks(self, dialect: str) -> bool:
        """Tell whether requests in a dialect need no translation."""
        return dialect == self.dialect or dialect in self.further

    def real_name(self, model: str) -> str:
        """Return the provider's own name of a model."""
        model = model.removeprefix(self.name + "/")
        return self.models.get(model, model)

    def identity(self, model: str) -> str:
        """Return what names this provider and its model for the cache key."""
        return f"{self.name} {self.base_url} {self.real_name(model)}"

    def candidate(self, route: str) -> Candidate:
        """Return its candidate for a ``[[route]]``."""
        return self.candidates.get(route) or self.candidates[""]

    def rank(self, model: str) -> tuple[bool, bool]:
        """Return its rank among the providers that may answer for a model. The lowest one answers.

        First comes a provider that the name of the model points to, then one that has the model.
        """
        is_named = model in self.named or model.startswith(self.name + "/")
        return not is_named, model not in self.known


@dataclass(frozen=True)
class BuiltRoute:
    """A ``[[route]]`` with its candidates."""

    candidate: Candidate | None = None
    """The candidate that answers; None: the model decides."""
    relays: Mapping[str, Candidate] = field(default_factory=dict)
    """The candidates for relayed requests, by the dialect that their upstreams speak."""
    deadline_s: float | None = None
    early_200_s: float | None = None
    """Time after which a streaming client gets status 200 although no content has come."""
    predicts: bool = False
    """Upstreams get the answer to a similar prompt as a prediction."""
    members: tuple[str, ...] = ()
    """Names of its upstreams, in the order for answers that no judge reads first."""
    rescued: Callable[[Candidate], Candidate] | None = None
    """Puts the route's rescue around a candidate; None: there is no upstream."""
    assumes_equal: bool = False
    """The operator has declared the models of its upstreams equal."""


NO_ROUTE = BuiltRoute()
MEMO_MODELS = 1024
"""The number of names of models whose candidates are remembered."""
LONGEST_NAME = 128
"""Longest name of a model that is remembered, because callers may send any name."""


class ChosenCandidate(msgspec.Struct, frozen=True):
    """The candidate that answers for a model."""

    candidate: Candidate
    identity: str
    """Names upstreams and models for the cache key."""
    names: frozenset[str]
    """The upstreams that may answer."""
    several: bool
    """Whether there are several upstreams, so that a conversation should stay with one of them."""
    avoid: frozenset[str] = frozenset()
    """Upstreams of the candidate that may not answer."""


@dataclass(eq=False, repr=False)
class Router:
    """Picks upstreams. ``routes`` are the ``[[route]]`` tables by name, "" for no route.

    ``names_conversations``: calls have the digest of their conversation even if only one upstream
    can answer.
    """

    providers: Sequence[Provider]
    """All upstreams, in the order of the settings."""
    routes: Mapping[str, BuiltRoute]
    _: KW_ONLY
    names_conversations: bool = False

    def __post_init__(self) -> None:
        self._known = lru_cache(MEMO_MODELS)(self._choose)

    def pick(self, dialect: str, model: str | None, route: str) -> Candidate:
        """Return the candidate for a request that takes ``route``. Raises NoUpstream.

        ``model`` is None for a body that we cannot read.
        """
        named = self.routes.get(route, NO_ROUTE).candidate
        if named is not None and (model is not None or self._all_speak(named, dialect)):
            return named
        return self._choose_provider(dialect, model).candidate(route)

    def choose(self, dialect: str, model: str, route: str) -> ChosenCandidate:
        """Return the candidate for a model, which is computed once. Raises NoUpstream."""
        choose = self._known if len(model) <= LONGEST_NAME else self._choose
        return choose(dialect, model, route)

    def _choose(self, dialect: str, model: str, route: str) -> ChosenCandidate:
        document = DOCUMENTS.get(dialect)
        if document is None:
            return self._choose_for_chat(dialect, model, route)
        return self._choose_for_document(document, model, route)

    def assign(self, call: Call, scope: str, route: str) -> tuple[Candidate, Call]:
        """Return the candidate for a call, and the call that it gets. Raises NoUpstream."""
        request = call.request
        if call.dialect in DOCUMENTS:
            model = "" if request is None else request.model
            chosen = self.choose(call.dialect, model, route)
            return chosen.candidate, msgspec.structs.replace(call, avoid=chosen.avoid)
        if request is None:
            candidate = self.pick(call.dialect, None, route)
        else:
            chosen = self.choose(call.dialect, request.model, route)
            candidate = chosen.candidate
            if (chosen.several or self.names_conversations) and not call.affinity:
                call = msgspec.structs.replace(call, affinity=conversation(scope, request))
        if self.routes.get(route, NO_ROUTE).early_200_s is not None:
            # The client gets the status before the answer's encoding is known.
            plain = tuple(pair for pair in call.headers if pair[0] != b"accept-encoding")
            call = msgspec.structs.replace(call, headers=plain)
        return candidate, call

    def upstreams(self, dialect: str, model: str, route: str) -> tuple[str, frozenset[str]]:
        """Name the candidate for the cache key, and all upstreams that may answer.

        Raises NoUpstream.
        """
        chosen = self.choose(dialect, model, route)
        return chosen.identity, chosen.names

    @property
    def own_keys(self) -> frozenset[str]:
        """All upstreams that never get a caller's key."""
        return frozenset().union(*(each.own_keys for each in self.providers))

    def relayed(self, dialect: str, model: str, route: str) -> Candidate:
        """Return the candidate for a request to a path that is not a chat path. Raises NoUpstream.

        Such a request is not translated, so it goes only to upstreams of its dialect: those of the
        route, or else the one for the model, or else the first one. ``model`` is "" if the request
        names none.
        """
        taken = self.routes.get(route, NO_ROUTE)
        if taken.candidate is None:
            return self._choose_provider(self._taker(dialect), model, translates=False).relay
        for each in takers_of(dialect):
            if each in taken.relays:
                return taken.relays[each]
        raise _nobody(route, dialect)

    def untranslated(self, dialect: str, model: str, route: str) -> Candidate | None:
        """Return the candidate for a request that goes to the same place as a chat with this model.

        None: the chat would be translated.
        """
        taken = self.routes.get(route, NO_ROUTE)
        if taken.candidate is not None:
            return taken.relays.get(dialect)
        chosen = self._choose_provider(dialect, model)
        return chosen.relay if chosen.speaks(dialect) else None

    def providers_for(self, dialect: str, model: str, route: str) -> list[Provider]:
        """Return the upstreams that may answer a chat, in the order in which they are asked."""
        names = self.pick(dialect, model, route).names
        order = self.routes.get(route, NO_ROUTE).members
        able = [each for each in self.providers if each.candidates[""].names & names]
        return sorted(able, key=lambda each: order.index(each.name) if each.name in order else -1)

    def tells_models_apart(self, dialect: str) -> bool:
        """Tell whether the model of a relayed request decides which upstream answers."""
        spoken = self._taker(dialect)
        able = [each for each in self.providers if each.speaks(spoken)]
        return len(able) > 1 or any(each.named for each in able)

    def _taker(self, dialect: str) -> str:
        """Return the dialect of the upstreams that take a dialect's relayed requests."""
        for each in takers_of(dialect):
            if any(provider.speaks(each) for provider in self.providers):
                return each
        return dialect

    def _choose_for_chat(self, dialect: str, model: str, route: str) -> ChosenCandidate:
        candidate = self.pick(dialect, model, route)
        names = candidate.names
        members = (each.identity(model) for each in self.providers if each.name in names)
        identity = "\n".join((candidate.identity, *members))
        return ChosenCandidate(candidate, identity, names, several=len(names) > 1)

    def _choose_for_document(self, form: DocumentForm, model: str, route: str) -> ChosenCandidate:
        """Return the candidate for a call that is not a chat, without upstreams of other models.

        The vectors of two models cannot be compared, and no request is translated.
        """
        taken = self.routes.get(route, NO_ROUTE)
        by_name = {each.name: each for each in self.providers}
        named = [by_name[name] for name in taken.members]
        able = [each for each in named if any(map(each.speaks, form.spoken_by))]
        candidate = taken.candidate
        if candidate is not None and not able:
            raise _nobody(route, form.spoken_by[0])
        if candidate is None:
            able = [self._first_to_speak(form, model)]
            candidate = able[0].candidate(route)
        # The first one decides which model answers.
        weights = able[0].weights(able[0].real_name(model))
        equals = [
            each
            for each in able
            if taken.assumes_equal or each.weights(each.real_name(model)) == weights
        ]
        may_answer = frozenset[str]().union(*(each.candidates[""].names for each in equals))
        return ChosenCandidate(
            candidate,
            identity="\n".join(sorted(each.identity(model) for each in equals)),
            names=candidate.names & may_answer,
            several=False,
            avoid=candidate.names - may_answer,
        )

    def _first_to_speak(self, form: DocumentForm, model: str) -> Provider:
        """Return the provider for a model, among those with the paths of these calls."""
        for dialect in form.spoken_by:
            able = [each for each in self.providers if each.speaks(dialect)]
            if able:
                return min(able, key=lambda each: each.rank(model))
        # Raises NoUpstream: no upstream speaks this dialect.
        return self._choose_provider(form.spoken_by[0], None)

    def _all_speak(self, candidate: Candidate, dialect: str) -> bool:
        """Return whether all upstreams of a candidate speak a dialect, and so accept any body."""
        members = [each for each in self.providers if each.name in candidate.names]
        return all(each.speaks(dialect) for each in members)

    def _choose_provider(
        self, dialect: str, model: str | None, *, translates: bool = True
    ) -> Provider:
        """Return the provider that the model points to, else one that has it, else any.

        Among equal ones, the order is: the caller's dialect as main dialect, the caller's dialect
        as a further one, then the order of the settings. A provider of another dialect needs a
        translated request, for which the body must be readable (``model`` is not None).
        """

        def rank(each: Provider) -> tuple[bool, ...]:
            return (*each.rank(model or ""), not each.speaks(dialect), each.dialect != dialect)

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


def _nobody(route: str, dialect: str) -> NoUpstream:
    return NoUpstream(
        f"route {route!r} has no upstream for this path, whose requests are not translated: add "
        f'an upstream with dialect = "{_setting(dialect)}" to it'
    )


def conversation(scope: str, request: ChatRequest) -> str:
    """Return a digest that is the same for all turns of one conversation.

    It covers the caller, the system text and the first user message.
    """
    parts = [scope, *FORMS[request.dialect].opening(request.document)]
    return blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()


# --- ``GET /v1/models`` ---------------------------------------------------------------------------

FRESH_S = 600.0
"""A list that is older is asked for again, in the background."""
RETRY_S = 30.0
"""Time after a failure until the list is asked for again."""
FETCH_S = 10.0
"""Longest time for one list."""
WAIT_S = 2.0
"""Longest wait of a caller for lists that have never come yet."""
MOST_BYTES = 8 * 1024 * 1024
"""A longer list is cut off, and counts as a failure."""
_PATH = re.compile(rb"/v1(?:beta)?/models(?:/(.+))?")
_RETRY = frozenset((b"retry-after", b"retry-after-ms", b"x-should-retry"))
"""The headers of a refusal that tell clients when to ask again."""
_HEADERS = ((b"accept", b"application/json"), (b"accept-encoding", b"identity"))


@dataclass(frozen=True)
class ListSource:
    """An upstream that has a list of models."""

    name: str
    base_url: str
    dialect: UpstreamDialect
    form: ModelsForm
    upstream: Upstream


class _KeptList(Frozen):
    """An upstream's list. ``at`` is when it came, in Unix seconds."""

    base_url: str
    at: float
    models: tuple[ListedModel, ...]


_Lists: TypeAlias = dict[str, dict[str, ListedModel]]
"""The models of each upstream's list, by id."""


def chat_path(dialect: Dialect, model: str) -> str:
    """Return the path of a chat with a model."""
    if dialect.paths:
        return dialect.paths[0]
    assert dialect.operations is not None  # a dialect has paths or operations
    return dialect.operations.endpoint.replace("{model}", model)


def model_in(path: bytes, dialect: Dialect) -> str:
    """Return the model that a path below ``/models/`` names, or ""."""
    found = _PATH.fullmatch(path)
    if found is None or found[1] is None:
        return ""
    name: bytes = found[1]
    if dialect.operations is not None:
        name = name.partition(b":")[0]  # the name ends at ":", before the operation
    return unquote_to_bytes(name).decode("utf-8", "replace")


class ModelAnswer(NamedTuple):
    """The body of an answer, and the age of the oldest list in it; None: it holds none."""

    body: bytes
    age_s: float | None


@dataclass(eq=False, repr=False)
class ModelLists:
    """Lists the models that callers may name.

    ``sources`` need no caller's key. Without them, a request goes to an upstream with the caller's
    key. If that upstream speaks another API and is one of ``keyed``, its list is translated
    (``answer_with_key``). ``no_lists``: no upstream has a list for anybody, so the names in routes
    and upstreams are the answer. ``rules`` are the ``[[route]]`` tables; ``clock`` gives Unix
    seconds. ``allows`` tells whether a caller, by the name of its key, may ask for a model.
    """

    router: Router
    rules: Sequence[RouteRule]
    sources: Sequence[ListSource]
    _: KW_ONLY
    spawn: Spawn
    clock: Callable[[], float]
    new_id: Callable[[], str]
    observer: Observer
    allows: Callable[[str, str], bool] | None = None
    no_lists: bool = False
    keyed: Sequence[ListSource] = ()
    _kept: dict[str, _KeptList] = field(default_factory=dict)
    _models: _Lists = field(default_factory=dict)
    """The models of each list, by id."""
    _asked: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """The last time that each list was asked for."""
    _next: dict[str, float] = field(default_factory=dict)
    """The time at which each list is asked for again, in Unix seconds."""

    def saved(self) -> bytes:
        """Return the lists, without the providers' descriptions, for the next start."""
        kept = {
            name: msgspec.structs.replace(
                each, models=tuple(msgspec.structs.replace(m, fields=None) for m in each.models)
            )
            for name, each in self._kept.items()
        }
        return msgspec.json.encode(kept)

    def load(self, saved: bytes) -> None:
        """Take over the lists of an earlier run, except lists of another address."""
        kept = json_or_none(saved, dict[str, _KeptList]) or {}
        for source in self.sources:
            found = kept.get(source.name)
            if found is not None and found.base_url == source.base_url:
                self._keep(source.name, found)

    async def answer(self, call: Call) -> ModelAnswer | None:
        """Return the answer to a request for the list or for one model.

        None for any other request, and for a model that is not known here. Raises RequestError for
        a route that does not exist.
        """
        asked = _asked_list(call)
        if asked is None or not (self.sources or self.no_lists):
            return None
        await self._refresh()
        ages = [self.clock() - each.at for each in self._kept.values()]
        body = self._written(call, *asked, self._models)
        return None if body is None else ModelAnswer(body, max(ages, default=None))

    async def answer_with_key(self, call: Call) -> ModelAnswer | None:
        """Return the answer with an upstream's list that is asked for with the caller's key.

        The upstream is the one that answers a chat of this caller with this route and model. None
        for any other request, and for a model that is not known here. Raises RequestError and
        UpstreamError.
        """
        asked = _asked_list(call)
        if asked is None or self.sources:
            return None
        dialect = asked[0]
        name = model_in(call.path, dialect)
        chosen = [each.name for each in self.router.providers_for(call.dialect, name, call.route)]
        source = next((each for each in self.keyed if [each.name] == chosen[:1]), None)
        if source is None:
            return None
        key = neutral_headers(call.headers, call.query_string, None, source.dialect.key_header)
        pairs = (*key, *source.dialect.required_headers.items())
        headers = tuple((name.encode(), value.encode("latin-1")) for name, value in pairs)
        try:
            async with asyncio.timeout(FETCH_S):
                found, status, sent = await self._ask(source, headers)
        except TimeoutError:
            late = f"upstream {source.name} did not list its models within {FETCH_S:g} s"
            raise UpstreamTimeout(late) from None
        if not found:
            raise _refused(source, status, sent, dialect, call.id)
        body = self._written(call, *asked, {source.name: {each.id: each for each in found}})
        return None if body is None else ModelAnswer(body, None)

    def _written(
        self, call: Call, dialect: Dialect, form: ModelsForm, lists: _Lists
    ) -> bytes | None:
        """Write the list, or the model that is asked for; None: it is not known."""
        name = model_in(call.path, dialect)
        if not name:
            return msgspec.json.encode(form.write_list(list(self._listed(call, dialect, lists))))
        model = self._model(name, call, dialect, lists) if self._allows(call.caller, name) else None
        return None if model is None else msgspec.json.encode(form.write(model))

    def _listed(self, call: Call, dialect: Dialect, lists: _Lists) -> Iterator[ListedModel]:
        """Yield the models: those that routes name, aliases, and the upstreams' own."""
        names = [rule.model for rule in self.rules if not is_pattern(rule.model)]
        for provider in self.router.providers:
            names += [*provider.named, *lists.get(provider.name, ())]
        for name in dict.fromkeys(names):
            model = self._model(name, call, dialect, lists)
            if model is not None and self._allows(call.caller, name):
                yield model

    def _allows(self, caller: str, name: str) -> bool:
        return self.allows is None or self.allows(caller, name)

    def _model(self, name: str, call: Call, dialect: Dialect, lists: _Lists) -> ListedModel | None:
        """Return a model in the form for this caller; None: no upstream is known to have it."""
        literal = next((rule for rule in self.rules if rule.model == name), None)
        # A route may be for another path than chat's.
        path = chat_path(dialect, name) if literal is None or literal.path == "*" else literal.path
        rule = first_rule(self.rules, model=name, path=path, headers=call.headers)
        for provider in self.router.providers_for(dialect.name, name, rule.name):
            listed = lists.get(provider.name)
            # The description from its upstream's list.
            own = None if listed is None else listed.get(provider.models.get(name, name))
            disproved = name in provider.assumed and listed is not None
            if own is not None or rule.model == name or (name in provider.models and not disproved):
                own = own or ListedModel(id=name)
                return msgspec.structs.replace(own, id=name, owner=provider.name)
        return None

    async def _refresh(self) -> None:
        """Ask for old lists again, and wait a little for lists that have never come yet."""
        now = self.clock()
        for source in self.sources:
            name = source.name
            task, kept = self._asked.get(name), self._kept.get(name)
            due = self._next.get(name, 0.0 if kept is None else kept.at + FRESH_S)
            # A time that is too far in the future was noted before the clock was set back.
            if (task is None or task.done()) and not due - FRESH_S <= now < due:
                self._asked[name] = self.spawn(self._fetch, source)
        missing = [
            task for name, task in self._asked.items() if name not in self._kept and not task.done()
        ]
        if missing:
            await asyncio.wait(missing, timeout=WAIT_S)

    async def _fetch(self, source: ListSource) -> None:
        try:
            async with asyncio.timeout(FETCH_S):
                models, *_ = await self._ask(source)
                if not models:
                    raise _unlisted(source)
        except (HeadstartError, TimeoutError) as error:
            self._next[source.name] = self.clock() + RETRY_S
            failed = StageFailed(
                stage="models",
                error=type(error).__name__,
                detail=f"upstream {source.name} did not list its models",
            )
            return self.observer.notify(failed)
        now = self.clock()
        self._keep(source.name, _KeptList(base_url=source.base_url, at=now, models=tuple(models)))
        self._next[source.name] = now + FRESH_S

    def _keep(self, name: str, kept: _KeptList) -> None:
        self._kept[name] = kept
        self._models[name] = {each.id: each for each in kept.models}

    async def _ask(
        self, source: ListSource, headers: Headers = _HEADERS
    ) -> tuple[list[ListedModel], int, Headers]:
        """Return an upstream's list, and its answer's status and headers. Raises UpstreamError."""
        call = Call(
            id=self.new_id(),
            method="GET",
            path=source.form.path,
            query_string=source.form.query,
            headers=headers,
            body=b"",
            dialect="",
            endpoint="models",
            editable=False,
        )
        body = bytearray()
        async with await source.upstream.send(call) as reply:
            async for piece in reply.pieces:
                body += piece.data
                if len(body) > MOST_BYTES:
                    break
        try:
            models = source.form.read(msgspec.json.decode(body)) if reply.status == 200 else []
        except UNDECODABLE:
            models = []
        return models, reply.status, reply.headers


def _asked_list(call: Call) -> tuple[Dialect, ModelsForm] | None:
    """Return the dialect of a request for models, and its form of a list; None: another request."""
    dialect = DIALECTS.get(call.dialect)
    if dialect is None or dialect.models is None:
        return None
    if call.method != "GET" or not _PATH.fullmatch(call.path):
        return None
    return dialect, dialect.models


def _unlisted(source: ListSource) -> UpstreamProtocolError:
    return UpstreamProtocolError(f"upstream {source.name} does not list its models")


def _refused(
    source: ListSource, status: int, sent: Headers, dialect: Dialect, request_id: str
) -> UpstreamError:
    """Return the error for a caller that gets no list, in the caller's dialect."""
    if status < 400:
        return _unlisted(source)
    message = f"upstream {source.name} answered {status} to the request for its models"
    body = dialect.error_body(ErrorReported(message=message, status=status), request_id)
    return UpstreamRefused(
        message,
        status=status,
        headers=(*json_headers(body), *(pair for pair in sent if pair[0] in _RETRY)),
        body=body,
        code="upstream_error",
        upstream=source.name,
    )
