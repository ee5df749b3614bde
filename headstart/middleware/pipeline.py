"""The path of a request, the only place that puts the stages in order.

admit ► read ► prepare ► exact? ► semantic, and safe? ► join the same call ► call ► stream ► store
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
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
from headstart.middleware.body import ClientGone, discard_body, paced, read_body
from headstart.middleware.deadlines import UNBOUNDED, deadlines
from headstart.middleware.deliver import Deliverer, NotForOthers, error_answer
from headstart.middleware.exchange import Exchange
from headstart.middleware.flights import Flight, Flights
from headstart.middleware.learning.booking import AuditBooking
from headstart.middleware.learning.oversight import Allowed, Course, Ruling
from headstart.middleware.leaving import leave, leave_to_retry
from headstart.middleware.pump import Plan, Pump
from headstart.middleware.router import NO_ROUTE
from headstart.middleware.upstreams.app import AppUpstream
from headstart.observe import StageFailed, logger
from headstart.policies.key import variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.interfaces import AdmissionPolicy, Observer, Upstream
    from headstart.middleware.asgi_types import ASGIApp, Receive, Scope, Send
    from headstart.middleware.deliver import Replay
    from headstart.middleware.endpoints import Route
    from headstart.middleware.flights import Client
    from headstart.middleware.identity import Door
    from headstart.middleware.learning.learner import Lesson
    from headstart.middleware.learning.oversight import Oversight
    from headstart.middleware.lookup import Finder
    from headstart.middleware.prepare import Prepared, Preparer
    from headstart.middleware.router import Router
    from headstart.middleware.supervisor import Spawn, Supervisor
    from headstart.types import CacheKey, Entry


_EDITABLE = frozenset(("disabled", "no-store", "no-identity", "sampled"))
"""Reasons to bypass the cache that say nothing against racing, rescuing and shaping."""
_ANEW = frozenset(("no-cache", "repeat"))
"""Reasons of a miss that ask for another answer than the last."""
CLIENT_GONE = 499
"""Booked for clients that left before an answer began: the status nginx logs for them."""


@dataclass(frozen=True)
class EngineOptions:
    """Limits and modes of an engine (seconds, bytes, shares)."""

    max_body_bytes: int = 32 * 1024 * 1024
    body_timeout_s: float | None = None
    deadline_s: float | None = 600.0
    holdout: float = 0.0


class Engine:
    """Answers matched requests from the cache, a call in flight, or an upstream.

    ``router`` picks the provider; None sends misses to the wrapped app.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        door: Door,
        finder: Finder | None,
        oversight: Oversight | None,
        admission: AdmissionPolicy,
        preparer: Preparer,
        pump: Pump,
        flights: Flights,
        deliverer: Deliverer,
        supervisor: Supervisor,
        observer: Observer,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        router: Router | None,
    ) -> None:
        self._options = options
        self._door = door
        self._finder = finder
        self._oversight = oversight
        self._admission = admission
        self._preparer = preparer
        self._pump = pump
        self._flights = flights
        self._deliver = deliverer
        self._supervisor = supervisor
        self._observer = observer
        self._clock = clock
        self._new_id = new_id
        self._router = router
        self._routes = {} if router is None else router.routes
        # Audits and holdouts must not be predictable by a caller.
        self._random = random.SystemRandom()
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def max_body_bytes(self) -> int:
        """Longest request body that is read."""
        return self._options.max_body_bytes

    @property
    def spawn(self) -> Spawn:
        """Starts work that the engine owns."""
        return self._supervisor.spawn

    async def handle(
        self, route: Route, scope: Scope, receive: Receive, send: Send, app: ASGIApp
    ) -> None:
        """Answer one request and book it. Raises only what the wrapped app raises."""
        exchange = Exchange(self._new_id(), route, scope, receive, send)
        try:
            await self._answer(exchange, app)
        except ClientGone:
            if not exchange.delivered:
                exchange.error = "client-gone"
                exchange.status = exchange.status or CLIENT_GONE
        except (RequestError, UpstreamError) as error:
            exchange.error = getattr(error, "code", "error")
            if exchange.status:
                raise  # Too late for a status: breaking off is the only honest answer left.
            await error_answer(exchange, error)
        except Exception as error:
            exchange.error = type(error).__name__
            if self._router is None or exchange.status:
                raise
            logger.exception("request %s failed", exchange.id)
            await error_answer(exchange, HeadstartError("an error inside Headstart; see its log"))
        finally:
            if exchange.repeat is not None and self._finder is not None and exchange.succeeded:
                self._finder.note_answered(exchange.repeat)
            if exchange.seat is None:
                self._observer.notify(exchange.served(self._clock()))
            else:
                self._supervisor.spawn(self._book_later, exchange.over(), exchange.seat)

    async def _book_later(self, exchange: Exchange, seat: tuple[Flight, Client]) -> None:
        try:
            await leave_to_retry(exchange, *seat)
        finally:
            self._observer.notify(exchange.served(self._clock()))

    def renew(self, secret: bytes) -> bool:
        """Name scopes by the store's secret of now; tell whether it is another one."""
        return self._preparer.renew(secret)

    async def drain(self, seconds: float) -> None:
        """Wait for the calls in flight and their storing, at most ``seconds``; end the others."""
        if not self._pumps:
            return
        _, late = await asyncio.wait(tuple(self._pumps), timeout=seconds)
        for pump in late:
            pump.cancel()
        if late:  # while they can still be booked
            await asyncio.wait(late)

    async def _answer(self, exchange: Exchange, app: ASGIApp) -> None:
        self._door.admit(exchange.scope)
        limit = self._options.max_body_bytes
        receive = paced(exchange.receive, self._options.body_timeout_s)
        exchange.body = body = await read_body(receive, limit)
        if not body.complete:
            if self._router is None:
                return await self._bypass(exchange, app, "body-too-large")
            await discard_body(receive, 2 * limit)
            raise RequestTooLarge(f"the body exceeds server.max_body_bytes ({limit})")
        try:
            prepared = self._preparer.prepare(exchange.route, exchange.scope, body.data)
        except (InvalidRequest, RequestTooLarge) as error:
            if self._router is None:
                reason = "unreadable" if isinstance(error, InvalidRequest) else "body-too-large"
                return await self._bypass(exchange, app, reason)
            raise
        exchange.request, exchange.scope_name = prepared.request, prepared.scope
        exchange.rule, exchange.holder = prepared.rule, prepared.holder
        of_route = self._routes.get(prepared.rule, NO_ROUTE).deadline_s
        limit_s = self._options.deadline_s if of_route is None else of_route
        exchange.limit(deadlines(exchange.scope["headers"], limit_s))
        exchange.timings["parse"] = exchange.elapsed()
        key = prepared.key
        if key is None or self._finder is None:
            if prepared.directives.only_if_cached:
                raise NotCached(f"no cached answer: {prepared.bypass or 'the cache is off'}")
            reason = prepared.bypass or "disabled"
            return await self._bypass(exchange, app, reason)
        exchange.domain, exchange.lifetime = prepared.terms.domain, prepared.lifetime
        exchange.tenant, exchange.repeat = prepared.terms.tenant, prepared.repeat
        key, ruling = await self._look_up(exchange, prepared, key)
        exchange.lookup = ruling.lookup
        entry, now = ruling.lookup.entry, self._clock()
        if ruling.course is not Course.ASK and entry is not None:
            replay = self._replay(exchange, entry, now)
            if replay is not None:
                if ruling.course is Course.SERVE_AND_AUDIT and ruling.lesson is not None:
                    self._audit(exchange, prepared, key, ruling.lesson, app)
                return await self._deliver.hit(exchange, entry, replay, now)
            ruling = Ruling(Course.ASK, exchange.lookup)
        if prepared.directives.only_if_cached:
            raise NotCached("no cached answer, and Cache-Control: only-if-cached was asked for")
        await self._miss(exchange, prepared, key, app, ruling.lesson)

    async def _look_up(
        self, exchange: Exchange, prepared: Prepared, key: CacheKey
    ) -> tuple[CacheKey, Ruling]:
        """Return the key to look under and what becomes of what is found there.

        A step that fails costs the request the cache and nothing else.
        """
        assert self._finder is not None
        try:
            if prepared.request is not None and exchange.route.dialect is not None:
                variants = self._admission.variants(prepared.request)
                if variants > 1:
                    key = variant(key, self._random.randrange(variants))
            lookup = await self._finder.find(prepared, key)
            exchange.note_times(lookup)
            return key, self._rule(exchange, prepared, key, lookup)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
            return key, Ruling(Course.ASK, self._failed("lookup", error))

    def _replay(self, exchange: Exchange, entry: Entry, now: float) -> Replay | None:
        """Return a stored answer as it is to be sent; None if that fails, which is then a miss."""
        try:
            return self._deliver.replay(exchange, entry, now)
        except Exception as error:  # noqa: BLE001 - the same
            exchange.lookup = self._failed("replay", error)
            return None

    def _failed(self, stage: str, error: Exception) -> Lookup:
        self._observer.notify(StageFailed(stage=stage, error=type(error).__name__))
        return Lookup(outcome=Outcome.MISS, reason=f"{stage}-error")

    def _rule(
        self, exchange: Exchange, prepared: Prepared, key: CacheKey, lookup: Lookup
    ) -> Ruling:
        """Decide what becomes of a lookup; a random share of hits is held out to be compared."""
        ruling = Ruling(Course.ASK if lookup.entry is None else Course.SERVE, lookup)
        if self._oversight is not None:
            ruling = self._oversight.rule(
                exchange.id,
                lookup,
                key,
                prepared.terms,
                may=Allowed(
                    ask=not prepared.directives.only_if_cached,
                    twice=self._router is not None or exchange.route.idempotent,
                ),
            )
        if lookup.entry is None or not self._options.holdout:
            return ruling
        if self._random.random() >= self._options.holdout:
            return ruling
        exchange.holdout = True
        if self._oversight is not None:
            self._oversight.learner.withheld(exchange.id)
        held = Lookup(
            outcome=Outcome.MISS,
            reason="holdout",
            similarity=lookup.similarity,
            trial=lookup.trial,
        )
        lesson = ruling.lesson
        if lesson is not None and ruling.course is not Course.ASK:
            # Only the draw lets this hit teach; one that is asked anew teaches in any case.
            lesson = lesson._replace(drawn=self._options.holdout)
        return Ruling(Course.ASK, held, lesson)

    def _audit(
        self, exchange: Exchange, prepared: Prepared, key: CacheKey, lesson: Lesson, app: ASGIApp
    ) -> None:
        """Ask the provider what it would have answered to a hit, while the hit is served."""
        semantic = prepared.semantic_refusal is None
        exchange.limit(UNBOUNDED)  # the caller's haste is not the audit's: UNATTENDED_S bounds it
        flight = self._start(exchange, key, None, app, semantic=semantic, lesson=lesson)
        assert flight.pump is not None
        assert self._oversight is not None
        book = AuditBooking(self._observer, self._oversight.audits, self._clock, self._new_id())
        flight.pump.add_done_callback(partial(book, flight, exchange, lesson))

    async def _bypass(self, exchange: Exchange, app: ASGIApp, reason: str) -> None:
        exchange.lookup = Lookup(outcome=Outcome.BYPASS, reason=reason)
        if self._router is None:
            return await self._deliver.through_app(exchange, app)
        editable = reason in _EDITABLE
        exchange.forgo_retry()  # nobody can join what has no key
        await self._fly(
            exchange, self._start(exchange, None, None, app, semantic=False, editable=editable)
        )

    async def _miss(
        self,
        exchange: Exchange,
        prepared: Prepared,
        key: CacheKey,
        app: ASGIApp,
        lesson: Lesson | None,
    ) -> None:
        request = prepared.request
        assert request is not None
        identity = (
            key.exact,
            exchange.rule,
            request.stream,
            request.include_usage,
            request.max_tokens,
            request.choices,
            request.logprobs,
            prepared.directives.compress,
            # Who would answer is not known yet: whom not all of them accept joins no other caller.
            "" if prepared.readable is None else prepared.holder,
        )
        flight = self._flights.find(identity, exchange.begin_by)
        if flight is not None and flight.whole and exchange.lookup.reason in _ANEW:
            flight = None  # its answer is the one that the caller wants no more
        if flight is not None and not exchange.holdout:
            alone, exchange.lookup = exchange.lookup, Lookup(outcome=Outcome.JOINED)
            try:
                return await self._fly(exchange, flight)
            except NotForOthers:
                exchange.lookup = alone
        semantic = prepared.semantic_refusal is None
        flight = self._start(exchange, key, identity, app, semantic=semantic, lesson=lesson)
        await self._fly(exchange, flight)

    def _start(
        self,
        exchange: Exchange,
        key: CacheKey | None,
        identity: tuple[object, ...] | None,
        app: ASGIApp,
        *,
        semantic: bool,
        lesson: Lesson | None = None,
        editable: bool = True,
    ) -> Flight:
        """Begin an upstream call that belongs to no client. Call ``_fly`` before any await."""
        route = exchange.route
        predicts = self._routes.get(exchange.rule, NO_ROUTE).predicts
        call = exchange.call(editable=editable, predicts=predicts)
        upstream: Upstream
        if self._router is None:
            upstream = AppUpstream(app, exchange.scope, route.dialect, self._supervisor.spawn)
        else:
            upstream, call = self._router.assign(call, exchange.scope_name, exchange.rule)
        flight = Flight(deadline=call.deadline)
        plan = Plan(
            call=call,
            upstream=upstream,
            route=route,
            identity=identity if identity is not None else flight,
            key=key,
            semantic=semantic,
            lifetime=exchange.lifetime,
            tenant=exchange.tenant,
            lesson=lesson,
            holder=exchange.holder,
            wrapped=self._router is None,
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
            early_200_s = self._routes.get(exchange.rule, NO_ROUTE).early_200_s
            await self._deliver.flight(exchange, flight, client, early_200_s)
        finally:
            if flight.clients == 1 and not flight.done and exchange.will_retry:
                exchange.seat = flight, flight.join()
                flight.leave(client)
            else:
                await leave(exchange, flight, client)
