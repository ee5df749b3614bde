"""The path of a request, the only place that puts the stages in order.

read ► prepare ► exact? ► semantic, and safe? ► join the same call ► call ► stream ► store
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.decisions import Lookup, Outcome
from headstart.errors import (
    HeadstartError,
    InvalidRequest,
    NotCached,
    RequestError,
    RequestTooLarge,
    UpstreamError,
)
from headstart.middleware.body import ClientGone, discard_body, read_body
from headstart.middleware.deliver import Deliverer, error_answer
from headstart.middleware.exchange import Exchange
from headstart.middleware.flights import Flight, Flights
from headstart.middleware.pump import Plan, Pump
from headstart.middleware.upstreams.app import AppUpstream
from headstart.observe import logger
from headstart.policies.key import variant
from headstart.types import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.embeddings.cache import SemanticCache
    from headstart.interfaces import AdmissionPolicy, Observer, Upstream
    from headstart.middleware.asgi_types import ASGIApp, Receive, Scope, Send
    from headstart.middleware.endpoints import Route
    from headstart.middleware.prepare import Prepared, Preparer
    from headstart.middleware.supervisor import Supervisor
    from headstart.types import CacheKey, ChatRequest, Entry


_FOREVER_S = 1e9
CLIENT_GONE = 499
"""Booked for clients that left before an answer began: the status nginx logs for them."""


@dataclass(frozen=True)
class EngineOptions:
    """Limits and modes of an engine (seconds, bytes, shares)."""

    max_body_bytes: int = 32 * 1024 * 1024
    deadline_s: float | None = 600.0
    semantic: bool = True
    holdout: float = 0.0


class Engine:
    """Answers matched requests from the cache, a flight in the air, or an upstream.

    ``upstream_for`` picks a provider for a request; None sends misses to the wrapped app.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        cache: SemanticCache | None,
        admission: AdmissionPolicy,
        preparer: Preparer,
        pump: Pump,
        flights: Flights,
        deliverer: Deliverer,
        supervisor: Supervisor,
        observer: Observer,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        upstream_for: Callable[[ChatRequest | None], Upstream] | None,
    ) -> None:
        self._options = options
        self._cache = cache
        self._admission = admission
        self._preparer = preparer
        self._pump = pump
        self._flights = flights
        self._deliver = deliverer
        self._supervisor = supervisor
        self._observer = observer
        self._clock = clock
        self._new_id = new_id
        self._upstream_for = upstream_for
        # Audits and holdouts must not be predictable by a caller.
        self._random = random.SystemRandom()
        self._pumps: set[asyncio.Task[None]] = set()

    async def handle(
        self, route: Route, scope: Scope, receive: Receive, send: Send, app: ASGIApp
    ) -> None:
        """Answer one request and book it. Raises only what the wrapped app raises."""
        exchange = Exchange(self._new_id(), route, scope, receive, send)
        try:
            await self._answer(exchange, app)
        except ClientGone:
            exchange.error = "client-gone"
            exchange.status = exchange.status or CLIENT_GONE
        except (RequestError, UpstreamError) as error:
            exchange.error = getattr(error, "code", "error")
            if exchange.status:
                raise  # Too late for a status: breaking off is the only honest answer left.
            await error_answer(exchange, error)
        except Exception as error:
            exchange.error = type(error).__name__
            if self._upstream_for is None or exchange.status:
                raise
            logger.exception("request %s failed", exchange.id)
            await error_answer(exchange, HeadstartError("an error inside Headstart; see its log"))
        finally:
            self._observer.notify(exchange.served(self._clock()))

    async def drain(self, seconds: float) -> None:
        """Wait for the calls in flight and their storing, at most ``seconds``."""
        if self._pumps:
            await asyncio.wait(tuple(self._pumps), timeout=seconds)

    async def _answer(self, exchange: Exchange, app: ASGIApp) -> None:
        limit = self._options.max_body_bytes
        exchange.body = body = await read_body(exchange.receive, limit)
        if not body.complete:
            if self._upstream_for is None:
                return await self._bypass(exchange, app, "body-too-large")
            await discard_body(exchange.receive, 2 * limit)
            raise RequestTooLarge(f"the body exceeds server.max_body_bytes ({limit})")
        try:
            prepared = self._preparer.prepare(exchange.route, exchange.scope, body.data)
        except InvalidRequest:
            if self._upstream_for is None:
                return await self._bypass(exchange, app, "unreadable")
            raise
        exchange.request, exchange.scope_name = prepared.request, prepared.scope
        exchange.timings["parse"] = exchange.elapsed()
        key = prepared.key
        if key is None or self._cache is None:
            if prepared.directives.only_if_cached:
                raise NotCached(f"no cached answer: {prepared.bypass or 'the cache is off'}")
            reason = prepared.bypass or "disabled"
            return await self._bypass(exchange, app, reason)
        if prepared.request is not None and exchange.route.dialect is not None:
            variants = self._admission.variants(prepared.request)
            if variants > 1:
                key = variant(key, self._random.randrange(variants))
        exchange.lookup = lookup = await self._look_up(prepared, key)
        _note_times(exchange, lookup)
        if lookup.entry is not None and not self._held_out(exchange, lookup):
            return await self._deliver.hit(exchange, lookup.entry, self._clock())
        if prepared.directives.only_if_cached:
            raise NotCached("no cached answer, and Cache-Control: only-if-cached was asked for")
        await self._miss(exchange, prepared, key, app)

    async def _look_up(self, prepared: Prepared, key: CacheKey) -> Lookup:
        assert self._cache is not None
        directives, request = prepared.directives, prepared.request
        if directives.no_cache:
            return Lookup(outcome=Outcome.MISS, reason="no-cache")
        now = self._clock()

        def refuse(entry: Entry) -> str | None:
            if directives.max_age_s is not None and now - entry.created > directives.max_age_s:
                return "stale"
            return self._admission.refuse_serve(request, entry) if request is not None else None

        began = time.perf_counter()
        entry = self._cache.peek_exact(key.exact)
        if entry is None:
            entry = await self._cache.find_exact(key, refuse)
        reason = refuse(entry) if entry is not None else None
        if entry is not None and reason is None:
            spent = time.perf_counter() - began
            return Lookup(outcome=Outcome.EXACT, entry=entry, lookup_s=spent)
        if entry is not None:
            return Lookup(outcome=Outcome.MISS, reason=reason)
        if not self._options.semantic:
            return Lookup(outcome=Outcome.MISS, reason="exact-only")
        if prepared.semantic_refusal is not None:
            return Lookup(outcome=Outcome.MISS, reason=prepared.semantic_refusal)
        return await self._cache.find_semantic(key, refuse)

    def _held_out(self, exchange: Exchange, lookup: Lookup) -> bool:
        """Send a random share of would-be hits upstream, to measure what hits really save."""
        if not self._options.holdout or self._random.random() >= self._options.holdout:
            return False
        exchange.holdout = True
        exchange.lookup = Lookup(
            outcome=Outcome.MISS, reason="holdout", similarity=lookup.similarity
        )
        return True

    async def _bypass(self, exchange: Exchange, app: ASGIApp, reason: str) -> None:
        exchange.lookup = Lookup(outcome=Outcome.BYPASS, reason=reason)
        if self._upstream_for is None:
            return await self._deliver.through_app(exchange, app)
        flight = self._start(exchange, None, None, app, semantic=False)
        await self._fly(exchange, flight)

    async def _miss(
        self, exchange: Exchange, prepared: Prepared, key: CacheKey, app: ASGIApp
    ) -> None:
        request = prepared.request
        assert request is not None
        identity = (
            key.exact,
            request.stream,
            request.include_usage,
            request.max_tokens,
            request.choices,
            request.logprobs,
        )
        flight = self._flights.find(identity)
        if flight is not None and not exchange.holdout:
            exchange.lookup = Lookup(outcome=Outcome.JOINED)
        else:
            semantic = self._options.semantic and prepared.semantic_refusal is None
            flight = self._start(exchange, key, identity, app, semantic=semantic)
        await self._fly(exchange, flight)

    def _start(
        self,
        exchange: Exchange,
        key: CacheKey | None,
        identity: tuple[object, ...] | None,
        app: ASGIApp,
        *,
        semantic: bool,
    ) -> Flight:
        """Begin an upstream call that belongs to no client. Call ``_fly`` before any await."""
        scope, route, request = exchange.scope, exchange.route, exchange.request
        assert exchange.body is not None
        call = Call(
            id=exchange.id,
            method=scope["method"],
            path=exchange.path,
            query_string=scope["query_string"],
            headers=exchange.headers,
            body=exchange.body.data,
            dialect=route.dialect.name if route.dialect is not None else "",
            endpoint=route.name,
            request=request,
            editable=key is not None,
        )
        upstream: Upstream
        if self._upstream_for is None:
            upstream = AppUpstream(app, scope, route.dialect, self._supervisor.spawn)
        else:
            upstream = self._upstream_for(request)
        flight = Flight()
        plan = Plan(
            call=call,
            upstream=upstream,
            route=route,
            identity=identity if identity is not None else flight,
            key=key,
            semantic=semantic,
            credential_scope=self._preparer.credential_scope(call.headers),
            wrapped=self._upstream_for is None,
        )
        if identity is not None:
            self._flights.add(identity, flight)
        flight.pump = pump = self._supervisor.spawn(self._pump.run, flight, plan)
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return flight

    async def _fly(self, exchange: Exchange, flight: Flight) -> None:
        client = flight.join()
        try:
            seconds = self._deadline_s(exchange)
            deadline = None
            if seconds is not None:
                deadline = asyncio.get_running_loop().time() + seconds
            await self._deliver.flight(exchange, flight, client, deadline)
        finally:
            flight.leave(client)
            if flight.first_content is not None:
                exchange.upstream_s = max(0.0, flight.first_content - exchange.started)
            if flight.origin is not None:
                paid = exchange.lookup.outcome is not Outcome.JOINED
                exchange.take_origin(flight.origin, paid=paid)

    def _deadline_s(self, exchange: Exchange) -> float | None:
        """The tightest of the setting, ``x-headstart-deadline-ms`` and an SDK's read timeout."""
        bounds = [] if self._options.deadline_s is None else [self._options.deadline_s]
        for name, value in exchange.scope["headers"]:
            if name == b"x-headstart-deadline-ms":
                bounds += [ms / 1e3 for ms in _positive(value)]
            elif name == b"x-stainless-read-timeout":
                bounds += _positive(value)
        return min(bounds, default=None)


def _positive(value: bytes) -> list[float]:
    """Return the header's number, or nothing if it is none."""
    try:
        number = float(value)
    except ValueError:
        return []
    return [number] if 0 < number < _FOREVER_S else []


def _note_times(exchange: Exchange, lookup: Lookup) -> None:
    exchange.timings["lookup"] = lookup.lookup_s
    if lookup.encode_s:
        exchange.timings["encode"] = lookup.encode_s
    if lookup.match_s:
        exchange.timings["match"] = lookup.match_s
