"""Answers ``GET /v1/models``: what routes and upstreams can answer, also while an upstream is down.

The upstreams' own lists are asked for in the background, kept, and asked for again when they are
old. They never decide who answers a request.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from headstart.dialects.model_lists import ListedModel
from headstart.dialects.registry import DIALECTS
from headstart.errors import HeadstartError, UpstreamProtocolError
from headstart.observe import StageFailed
from headstart.policies.route_rules import first_rule
from headstart.types import Call, Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.dialects.model_lists import ModelsForm
    from headstart.interfaces import Upstream
    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.router import Provider, Router
    from headstart.observe import Observer
    from headstart.policies.route_rules import RouteRule

FRESH_S = 600.0
"""A list that is older is asked for again, in the background."""
RETRY_S = 30.0
"""Time after a failure until the list is asked for again."""
FETCH_S = 10.0
WAIT_S = 2.0
"""Longest wait of a caller for lists that were never there."""
MOST_BYTES = 8 * 1024 * 1024
_PATH = re.compile(rb"/v1(?:beta)?/models(?:/(.+))?")
_WILD = frozenset("*?[")


@dataclass(frozen=True)
class ListSource:
    """An upstream whose list needs no caller's key."""

    name: str
    base_url: str
    form: ModelsForm
    upstream: Upstream


class _KeptList(Frozen):
    """An upstream's list. ``at`` is when it came, in Unix seconds."""

    base_url: str
    at: float
    models: tuple[ListedModel, ...]


def chat_path(dialect: Dialect, model: str) -> str:
    """Return the path of a chat with a model."""
    if dialect.paths:
        return dialect.paths[0]
    assert dialect.operations is not None  # a dialect of clients has one or the other
    return dialect.operations.route.replace("{model}", model)


def model_in(path: bytes, dialect: Dialect) -> str:
    """Return the model that a path below ``/models/`` names, or ""."""
    found = _PATH.fullmatch(path)
    if found is None or found[1] is None:
        return ""
    name: bytes = found[1]
    if dialect.operations is not None:
        name = name.partition(b":")[0]  # the operation follows
    return unquote_to_bytes(name).decode("utf-8", "replace")


class ModelAnswer(NamedTuple):
    """The body of an answer, and the age of the oldest list in it; None: it holds none."""

    body: bytes
    age_s: float | None


class ModelLists:
    """Lists the models that callers may name.

    It answers nothing without ``sources``: then a request goes to an upstream with the caller's
    key. ``listless``: no upstream has a list for anybody, so the names in routes and upstreams are
    the answer. ``rules`` are the ``[[route]]`` tables; ``clock`` gives Unix seconds. ``allows``
    tells whether a caller, by the name of its key, may ask for a model.
    """

    def __init__(
        self,
        router: Router,
        rules: Sequence[RouteRule],
        sources: Sequence[ListSource],
        *,
        spawn: Spawn,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        observer: Observer,
        allows: Callable[[str, str], bool] | None = None,
        listless: bool = False,
    ) -> None:
        self._router = router
        self._rules = rules
        self._sources = {each.name: each for each in sources}
        self._answers = listless or bool(sources)
        self._spawn = spawn
        self._clock = clock
        self._new_id = new_id
        self._observer = observer
        self._allows = allows or (lambda *_: True)
        self._kept: dict[str, _KeptList] = {}
        self._models: dict[str, dict[str, ListedModel]] = {}
        """The models of each list, by id."""
        self._asked: dict[str, asyncio.Task[None]] = {}
        """The last time that each list was asked for."""
        self._next: dict[str, float] = {}
        """When each list is to be asked for again, in Unix seconds."""

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
        """Take over the lists of an earlier run, without those of another address."""
        try:
            kept = msgspec.json.decode(saved, type=dict[str, _KeptList])
        except msgspec.DecodeError:
            return
        for name, source in self._sources.items():
            if name in kept and kept[name].base_url == source.base_url:
                self._keep(name, kept[name])

    async def answer(self, call: Call) -> ModelAnswer | None:
        """Return the answer to a request for the list or for one model; None: it is another one.

        None as well for a model that is not known here. Raises RequestError for a route that does
        not exist.
        """
        dialect = DIALECTS.get(call.dialect)
        if dialect is None or dialect.models is None or not self._answers:
            return None
        if call.method != "GET" or not _PATH.fullmatch(call.path):
            return None
        await self._refresh()
        ages = [self._clock() - each.at for each in self._kept.values()]
        age_s = max(ages, default=None)
        form = dialect.models
        name = model_in(call.path, dialect)
        if not name:
            models = list(self._listed(call, dialect))
            return ModelAnswer(msgspec.json.encode(form.write_list(models)), age_s)
        model = self._model(name, call, dialect) if self._allows(call.caller, name) else None
        return None if model is None else ModelAnswer(msgspec.json.encode(form.write(model)), age_s)

    def _listed(self, call: Call, dialect: Dialect) -> Iterator[ListedModel]:
        """Yield the models: those that routes name, aliases, and the upstreams' own."""
        names = [rule.model for rule in self._rules if not _WILD & set(rule.model)]
        for provider in self._router.providers:
            names += [*provider.named, *self._models.get(provider.name, ())]
        for name in dict.fromkeys(names):
            model = self._model(name, call, dialect)
            if model is not None and self._allows(call.caller, name):
                yield model

    def _model(self, name: str, call: Call, dialect: Dialect) -> ListedModel | None:
        """Return a model, as this caller would get it; None: nobody is known to answer it."""
        literal = next((rule for rule in self._rules if rule.model == name), None)
        # A route may be for another path than chat's.
        path = chat_path(dialect, name) if literal is None or literal.path == "*" else literal.path
        rule = first_rule(self._rules, model=name, path=path, headers=call.headers)
        for provider in self._router.answering(dialect.name, name, rule.name):
            own = self._own(provider, name)
            if own is not None or rule.model == name or name in provider.models:
                own = own or ListedModel(id=name)
                return msgspec.structs.replace(own, id=name, owner=provider.name)
        return None

    def _own(self, provider: Provider, name: str) -> ListedModel | None:
        """Return a model as the list of its upstream describes it."""
        return self._models.get(provider.name, {}).get(provider.models.get(name, name))

    async def _refresh(self) -> None:
        """Ask for lists that are old, and wait a little for those that were never there."""
        now = self._clock()
        for name, source in self._sources.items():
            task, kept = self._asked.get(name), self._kept.get(name)
            due = self._next.get(name, 0.0 if kept is None else kept.at + FRESH_S)
            if (task is None or task.done()) and now >= due:
                self._asked[name] = self._spawn(self._fetch, source)
        missing = [
            task for name, task in self._asked.items() if name not in self._kept and not task.done()
        ]
        if missing:
            await asyncio.wait(missing, timeout=WAIT_S)

    async def _fetch(self, source: ListSource) -> None:
        try:
            async with asyncio.timeout(FETCH_S):
                models = await self._ask(source)
        except (HeadstartError, TimeoutError) as error:
            self._next[source.name] = self._clock() + RETRY_S
            failed = StageFailed(
                stage="models",
                error=type(error).__name__,
                detail=f"the list of upstream {source.name}",
            )
            return self._observer.notify(failed)
        now = self._clock()
        self._keep(source.name, _KeptList(base_url=source.base_url, at=now, models=tuple(models)))
        self._next[source.name] = now + FRESH_S

    def _keep(self, name: str, kept: _KeptList) -> None:
        self._kept[name] = kept
        self._models[name] = {each.id: each for each in kept.models}

    async def _ask(self, source: ListSource) -> list[ListedModel]:
        """Return an upstream's list. Raises UpstreamError."""
        call = Call(
            id=self._new_id(),
            method="GET",
            path=source.form.path,
            query_string=source.form.query,
            headers=((b"accept", b"application/json"), (b"accept-encoding", b"identity")),
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
        except (msgspec.DecodeError, RecursionError):
            models = []
        if not models:
            raise UpstreamProtocolError(f"upstream {source.name} does not list its models")
        return models
