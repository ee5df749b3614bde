"""Requests with many items that are cached one by one: embeddings.

A provider is asked for the items that the cache does not have, once for each item. An answer in an
unexpected form reaches the client unchanged, and is not stored.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from headstart.decisions import Lookup, Outcome
from headstart.dialects.registry import Vectors, read_vectors, write_vectors
from headstart.errors import NotCached
from headstart.observe import StageFailed
from headstart.policies.key import item_key
from headstart.types import ASGIApp, CacheKey, Entry, Origin, RawResponse, T

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.flights import Flight
    from headstart.middleware.lookup import Finder
    from headstart.middleware.pump import Pump
    from headstart.middleware.request_context import RequestContext
    from headstart.middleware.respond import Compose, Responder
    from headstart.reply import Reply

    class StartCall(Protocol):
        """Begins an upstream call that belongs to no client."""

        def __call__(
            self,
            context: RequestContext,
            key: CacheKey | None,
            join_key: tuple[object, ...] | None,
            app: ASGIApp,
            *,
            body: bytes | None = None,
        ) -> Flight: ...


_JSON = ((b"content-type", b"application/json"),)
_ID = b"id"
"""The name under which an item keeps the id of its answer, as JSON."""
INLINE_BYTES = 256 * 1024
"""Longest answer that is split and joined on the event loop. Longer ones are split and joined in a
thread: 1 MB of numbers takes 10 ms."""


class EngineFunctions(NamedTuple):
    """The functions of an engine that handle the calls of a request."""

    limit: Callable[[RequestContext], None]
    start: StartCall
    send_flight: Callable[[RequestContext, Flight, Compose | None], Awaitable[None]]
    spawn: Spawn
    """Starts work that the engine waits for before it stops."""


class _Unexpected(Exception):
    """The provider's answer has an unexpected form, so the cached items cannot be added to it."""


class _RequestItems(NamedTuple):
    """The items of a request, and which of them the cache has."""

    context: RequestContext
    key: CacheKey
    exacts: list[str]
    """The exact key of each item, in the client's order."""
    found: dict[str, Entry]
    missing: dict[str, bytes]
    """The items to ask for, by exact key."""

    @property
    def is_whole(self) -> bool:
        """All items are missing, so the client's own bytes can be sent."""
        return len(self.missing) == len(self.exacts)


@dataclass(eq=False, repr=False)
class ItemAnswers:
    """Answers such requests. ``engine`` makes their calls, ``new_id`` names entries."""

    pump: Pump
    responder: Responder
    engine: EngineFunctions
    _: KW_ONLY
    new_id: Callable[[], str]

    async def answer(
        self, context: RequestContext, finder: Finder, key: CacheKey, app: ASGIApp
    ) -> None:
        """Answer from the cache, from a provider, or from both."""
        items, reason = await self._look_up(context, finder, key)
        if not items.missing:
            try:
                entry = await self._compose_entry(items)
            except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
                items, reason = self._forget_found(items), self._failed("replay", error)
            else:
                context.lookup = Lookup(outcome=Outcome.EXACT, entry=entry)
                now = self.pump.clock()
                response = self.responder.render(context, entry, now)
                return await self.responder.hit(context, entry, response, now)
        if context.prepared.directives.only_if_cached:
            raise NotCached("not all items are cached, and Cache-Control: only-if-cached was sent")
        self.engine.limit(context)
        await self._ask(items, reason, app)

    async def _look_up(
        self, context: RequestContext, finder: Finder, key: CacheKey
    ) -> tuple[_RequestItems, str | None]:
        """Return the items of the cache, and the reason why the first missing item is missing."""
        request = context.prepared.request
        assert request is not None
        items: list[bytes] = request.document["items"]
        exacts = [item_key(key.partition, item) for item in items]
        by_key = dict(zip(exacts, items, strict=True))
        began = time.perf_counter()
        try:
            entries, reason = await finder.find_items(context.prepared, list(by_key))
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
            entries, reason = [None] * len(by_key), self._failed("lookup", error)
        context.timings[b"lookup"] = time.perf_counter() - began
        found = {
            exact: entry
            for exact, entry in zip(by_key, entries, strict=True)
            if entry is not None and isinstance(entry.answer, RawResponse)
        }
        missing = {exact: item for exact, item in by_key.items() if exact not in found}
        context.items = len(items)
        context.item_hits = sum(exact in found for exact in exacts)
        return _RequestItems(context, key, exacts, found, missing), reason

    def _forget_found(self, items: _RequestItems) -> _RequestItems:
        """Return a request for which the cache has no item."""
        items.context.item_hits = 0
        request = items.context.prepared.request
        assert request is not None
        missing = dict(zip(items.exacts, request.document["items"], strict=True))
        return items._replace(found={}, missing=missing)

    def _failed(self, stage: str, error: Exception) -> str:
        self.pump.observer.notify(StageFailed(stage=stage, error=type(error).__name__))
        return f"{stage}-error"

    async def _compose_entry(self, items: _RequestItems) -> Entry:
        """Return one entry for an answer whose items are all in the cache."""
        entries = [items.found[exact] for exact in items.exacts]
        body = await _run(_size(entries), _write, entries, entries[0].origin.model)
        expires = [entry.expires for entry in entries if entry.expires is not None]
        return Entry(
            id=entries[0].id,
            key=items.key,
            answer=RawResponse(headers=_JSON, body=body),
            origin=_sum_origins(entries),
            created=min(entry.created for entry in entries),
            expires=min(expires, default=None),
        )

    async def _ask(self, items: _RequestItems, reason: str | None, app: ASGIApp) -> None:
        """Let a provider answer for the missing items."""
        context = items.context
        prepared, form = context.prepared, context.endpoint.document
        assert form is not None
        body = None
        if not items.is_whole:
            body = form.with_items(context.body, list(items.missing.values()))
        if items.found:
            reason = "partial"
            context.partly_saved = _sum_origins(
                [items.found[exact] for exact in items.exacts if exact in items.found]
            )
        context.lookup = Lookup(outcome=Outcome.MISS, reason=reason)
        holder = "" if prepared.readable is None else prepared.holder
        join_key = (items.key.partition, tuple(items.missing), prepared.route, holder)
        flight = self.pump.flights.find(join_key, context.begin_by)
        if flight is not None and not flight.whole:
            context.lookup = Lookup(outcome=Outcome.JOINED)
        else:
            flight = self.engine.start(context, None, join_key, app, body=body)
        try:
            await self.engine.send_flight(context, flight, partial(self._compose, items))
        except _Unexpected:
            await self._ask_for_all(context, app)

    async def _ask_for_all(self, context: RequestContext, app: ASGIApp) -> None:
        """Let the provider answer the client's own request, and pass the answer on."""
        booked = context.attempts
        context.item_hits, context.partly_saved = 0, None
        context.lookup = Lookup(outcome=Outcome.MISS, reason="partial")
        flight = self.engine.start(context, None, None, app)
        flight.not_stored = "unreadable"
        try:
            await self.engine.send_flight(context, flight, None)
        finally:
            context.attempts = booked + context.attempts

    async def _compose(
        self, items: _RequestItems, flight: Flight, reply: Reply, body: bytes | None
    ) -> bytes | None:
        """Return the client's answer, made from a provider's whole one. Raises _Unexpected."""
        if reply.status == 200 and body is not None:
            if flight.reading is None:
                flight.reading = self.engine.spawn(self._keep, items, flight, reply, body)
            await asyncio.wait((flight.reading,))
        if flight.vectors is None:
            why = "too-large" if body is None else "unreadable"
            flight.not_stored = flight.not_stored or ("status" if reply.status != 200 else why)
            if not items.is_whole:
                raise _Unexpected
            return body
        if items.is_whole:
            return body
        size = _size(items.found.values()) + len(body or b"")
        return await _run(size, _merge, items, flight.vectors)

    async def _keep(self, items: _RequestItems, flight: Flight, reply: Reply, body: bytes) -> None:
        """Read the items of an answer, and store them."""
        cache = self.pump.cache
        vectors = await _run(len(body), read_vectors, body, len(items.missing))
        origin = flight.origin
        if vectors is None or origin is None or cache is None:
            return
        entries = self._entries(items, vectors, reply, origin)
        for entry in entries:
            cache.keep(entry)
        flight.vectors = vectors
        self.engine.spawn(cache.put_each, entries)

    def _entries(
        self, items: _RequestItems, vectors: Vectors, reply: Reply, origin: Origin
    ) -> list[Entry]:
        prepared, now = items.context.prepared, self.pump.clock()
        life_s = prepared.lifetime.seconds
        origin = msgspec.structs.replace(origin, model=vectors.model or origin.model)
        origins = _shares(origin, [len(item) for item in items.missing.values()])
        # Mistral's clients refuse an answer without an id.
        named = ((_ID, bytes(vectors.head["id"])),) if "id" in vectors.head else ()
        return [
            Entry(
                id=self.new_id(),
                key=CacheKey(scope=items.key.scope, partition=items.key.partition, exact=exact),
                answer=RawResponse(headers=named, body=vector),
                origin=share,
                created=now,
                expires=None if life_s is None else now + life_s,
                tags=prepared.tags,
                transforms=reply.transforms,
            )
            for exact, vector, share in zip(items.missing, vectors.items, origins, strict=True)
        ]


async def _run(size: int, function: Callable[..., T], *arguments: object) -> T:
    """Run a function, in a thread if there are many bytes."""
    if size > INLINE_BYTES:
        return await asyncio.to_thread(function, *arguments)
    return function(*arguments)


def _write(entries: Sequence[Entry], model: str) -> bytes:
    answer = entries[0].answer
    assert isinstance(answer, RawResponse)
    answer_id = dict(answer.headers).get(_ID, b"")
    return write_vectors([_vector(entry) for entry in entries], model=model, answer_id=answer_id)


def _merge(items: _RequestItems, fresh: Vectors) -> bytes:
    """Return the answer with the cache's vectors and a provider's, in the client's order."""
    vectors = {exact: _vector(entry) for exact, entry in items.found.items()}
    vectors.update(zip(items.missing, fresh.items, strict=True))
    return write_vectors([vectors[exact] for exact in items.exacts], head=fresh.head)


def _size(entries: Iterable[Entry]) -> int:
    return sum(len(_vector(entry)) for entry in entries)


def _vector(entry: Entry) -> bytes:
    assert isinstance(entry.answer, RawResponse)
    return entry.answer.body


def _sum_origins(entries: Sequence[Entry]) -> Origin:
    """Return the cost of these items, as if one call had asked for them."""
    origins = [entry.origin for entry in entries]
    costs = [each.cost_usd for each in origins if each.cost_usd is not None]
    return msgspec.structs.replace(
        origins[0],
        ttft_s=max(each.ttft_s for each in origins),
        total_s=max(each.total_s for each in origins),
        prompt_tokens=sum(each.prompt_tokens for each in origins),
        extra_tokens=sum(each.extra_tokens for each in origins),
        cost_usd=sum(costs) if costs else None,
        extra_usd=sum(each.extra_usd for each in origins),
        prefix_usd=sum(each.prefix_usd for each in origins),
        estimated=any(each.estimated for each in origins),
    )


def _shares(origin: Origin, sizes: Sequence[int]) -> Iterable[Origin]:
    """Yield the part of each item in the cost of a call, by its length."""
    whole = sum(sizes)
    for before, after in pairwise(accumulate(sizes, initial=0)):
        share = (after - before) / whole
        yield msgspec.structs.replace(
            origin,
            prompt_tokens=_part_tokens(origin.prompt_tokens, before, after, whole),
            extra_tokens=_part_tokens(origin.extra_tokens, before, after, whole),
            cost_usd=None if origin.cost_usd is None else origin.cost_usd * share,
            extra_usd=origin.extra_usd * share,
            prefix_usd=origin.prefix_usd * share,
        )


def _part_tokens(tokens: int, before: int, after: int, whole: int) -> int:
    """Return the tokens of a part of the whole, so that all parts add up to ``tokens``."""
    return tokens * after // whole - tokens * before // whole
