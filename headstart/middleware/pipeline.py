"""The path of a request. Only this module puts the stages in order.

admit ► read ► prepare ► exact? ► semantic, and safe? ► join the same call ► call ► stream ► store

1. ``Engine.handle`` answers one request: it turns errors into responses, and books the request.
2. ``_read_and_serve`` admits the caller, reads the body and prepares the request (``prepare.py``).
3. ``_serve`` chooses the way: a live draft, the cache, or past the cache (``_bypass``).
4. ``_look_up`` asks the cache. ``_decide`` decides whether a hit is served, checked or both.
5. ``_miss`` joins the flight of an equal call, or begins one (``_start``), and ``_join`` sends its
   answer. The flight's pump stores the answer (``pump.py``).

For example, two equal chats come at the same time, and a third one later. The first is a miss and
begins a flight. The second is a miss, too, and joins this flight. The third is an exact hit.

Requests that the engine must not touch go to a wrapped app as they are (``_pass_through``).
"""

from __future__ import annotations

import asyncio
import random
import time
from codecs import BOM_UTF8
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import LIVE_DRAFT, Lookup, Outcome
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.responses_chains import may_refer
from headstart.errors import (
    Forbidden,
    HeadstartError,
    InvalidRequest,
    LimitsUnavailable,
    NotCached,
    OverLimit,
    RequestError,
    RequestTooLarge,
    UpstreamError,
    booked_code,
)
from headstart.middleware.body import ClientGone, body_too_large, read_body, refusing
from headstart.middleware.conversations import AnswerSource, Conversations, refuse_compressed
from headstart.middleware.endpoints import DEPLOYMENT, MatchedEndpoint, raw_path, with_deployment
from headstart.middleware.flights import ANSWER_FORMS, LOG_BYTES, AnswerForm, Flight, Flights
from headstart.middleware.items import EngineFunctions, ItemAnswers
from headstart.middleware.learning.hit_decisions import AllowedChecks, HitAction, HitDecision
from headstart.middleware.prepare import EDITABLE, INLINE_BYTES, LIVE_INFERENCES, Prepared, Preparer
from headstart.middleware.pump import AnswerLog, Pump, PumpedCall, calls_tools
from headstart.middleware.reading import HELD_DOCUMENT_BYTES
from headstart.middleware.request_context import KeptCall, KeptCalls, RequestContext
from headstart.middleware.respond import (
    CUT_OFF_AFTER_S,
    NotForOthers,
    end_app,
    end_left,
    leave_to_retry,
    send_error,
)
from headstart.middleware.router import NO_ROUTE, BuiltRoute, Router
from headstart.middleware.shaping.steps import limited_body
from headstart.middleware.shared_flights import LeaseClaim, SharedFlights
from headstart.middleware.translated_reading import SentencePace
from headstart.middleware.upstreams.app import AppUpstream
from headstart.observe import Observer, StageFailed, logger
from headstart.policies.key import variant

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from headstart.attempts import RoutingEstimate
    from headstart.embeddings.cache import FindExact
    from headstart.interfaces import AdmissionPolicy, Upstream
    from headstart.middleware.client_ledger import ClientLedger
    from headstart.middleware.concurrency import Spawn, Supervisor
    from headstart.middleware.identity import AccessControl
    from headstart.middleware.learning.hit_decisions import HitDecider
    from headstart.middleware.learning.learner import FeedbackSample
    from headstart.middleware.lookup import Finder
    from headstart.middleware.respond import Compose, Responder, StoredResponse
    from headstart.settings import JoinStreams
    from headstart.types import ASGIApp, CacheKey, Entry, Headers, Receive, Scope, Send

_WANTS_NEW = frozenset(("no-cache", "repeat"))
"""Reasons of a miss in which the client wants a new answer."""
_LIMITS_OF_KEYS = (Forbidden, LimitsUnavailable, OverLimit)
"""Errors that concern only the key that began a call, and not its other callers."""
_COMPOSED = frozenset(("rescued", "continued"))
"""Transforms of answers that several calls made together."""


@dataclass(frozen=True)
class EngineOptions:
    """Limits and modes of an engine."""

    max_body_bytes: int = 32 * 1024 * 1024
    body_timeout_s: float | None = None
    """The longest time in which a client sends its body; None: no limit."""
    deadline_s: float | None = 600.0
    """The longest time for an answer, for routes without a value of their own."""
    holdout: float = 0.0
    """The share of the hits that are not served, to measure what hits save."""
    join_streams: JoinStreams = "sooner"
    """Whether a stream waits for an equal call in flight whose answer comes as a whole."""


async def _nobody(*_: Any) -> Any:
    """Stand for the client and the app of a live draft's call, which has neither."""
    raise RuntimeError("a live draft's call has no client and no app")


def _source_of(context: RequestContext) -> AnswerSource:
    """Return the source of the answer that a request got."""
    reply = None if context.flight is None else context.flight.reply
    return AnswerSource(
        context.upstream,
        asked=context.lookup.outcome in (Outcome.MISS, Outcome.BYPASS),
        composed=reply is not None and not _COMPOSED.isdisjoint(reply.transforms),
    )


def _join_key(prepared: Prepared, key: CacheKey) -> tuple[tuple[Any, ...], AnswerForm]:
    """Return all that must be equal in two calls, so that one may join the other.

    The second value is the form of the answer. A request may wait for a flight in another form.
    """
    request = prepared.request
    assert request is not None
    same = (
        key.exact,
        prepared.route,
        request.max_tokens,
        request.choices,
        request.logprobs,
        request.dialect,
        prepared.directives.compress,
        # It is not known yet which upstream will answer. So a caller that some of them have not
        # accepted does not join another caller's call.
        "" if prepared.readable is None else prepared.holder,
    )
    return same, ANSWER_FORMS[request.stream, request.include_usage]


@dataclass(eq=False, repr=False)
class Engine:
    """Answers matched requests from the cache, a call in flight, or an upstream."""

    options: EngineOptions
    _: KW_ONLY
    access: AccessControl
    finder: Finder | None
    hit_decider: HitDecider | None
    admission: AdmissionPolicy
    preparer: Preparer
    pump: Pump
    flights: Flights
    responder: Responder
    supervisor: Supervisor
    calls: Supervisor
    """Runs the calls. Before the engine stops, it waits for them."""
    observer: Observer
    clock: Callable[[], float]
    new_id: Callable[[], str]
    router: Router | None
    """Picks the provider; None: the wrapped app answers."""
    conversations: Conversations | None = None
    ledger: ClientLedger | None = None
    shared: SharedFlights | None = None
    """Joins equal calls of other processes; None: only those of this process are joined."""
    drafts: KeptCalls | None = None
    """The live drafts; None: there are none."""
    # Audits and holdouts must not be predictable by a caller.
    _random: random.SystemRandom = field(default_factory=random.SystemRandom)
    _mark: bytes = field(init=False)
    """The byte order mark, which programs on Windows write before a body. It is removed, because
    JSON has none. Empty if an app is wrapped: the app gets every byte."""
    _routes: Mapping[str, BuiltRoute] = field(init=False)
    _items: ItemAnswers = field(init=False)

    def __post_init__(self) -> None:
        self._mark = b"" if self.router is None else BOM_UTF8
        self._routes = {} if self.router is None else self.router.routes
        engine = EngineFunctions(self._limit, self._start, self._join, self.calls.spawn)
        self._items = ItemAnswers(self.pump, self.responder, engine, new_id=self.new_id)

    @property
    def spawn(self) -> Spawn:
        """Starts work that the engine owns."""
        return self.supervisor.spawn

    async def handle(  # noqa: C901, PLR0912 - a branch for each way in which a request ends
        self,
        endpoint: MatchedEndpoint,
        path: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
        app: ASGIApp,
        *,
        page_headers: Headers = (),
    ) -> None:
        """Answer one request and book it. Raises only what the wrapped app raises."""
        context = RequestContext(self.new_id(), endpoint, path, scope, receive, send)
        context.page_headers = page_headers
        try:
            await self._read_and_serve(context, app)
        except ClientGone:
            await end_left(context, send)
        except asyncio.CancelledError:
            await end_app(context)
            raise
        except (RequestError, UpstreamError) as error:
            context.error = booked_code(error)
            if not context.status:
                await send_error(context, error)
            elif self.router is not None:
                raise  # It is too late for a status, so the answer breaks off.
            # A wrapped app ended in the middle of its answer, so this request ends there, too.
            error.forget_frames()
        except Exception as error:
            context.error = type(error).__name__
            if self.router is None or context.status:
                raise
            logger.exception("request %s failed", context.id)
            await send_error(context, HeadstartError("an error inside Headstart; see its log"))
        finally:
            repeat = context.prepared.repeat
            if repeat is not None and self.finder is not None and context.succeeded:
                self.finder.answered.note(repeat)
            if context.claim is not None:
                context.claim.close()
            # Drops wrappers of ``send`` that refer to the context: a cycle keeps the body.
            context.send = send
            if context.retry_reader is None:
                self.observer.notify(context.served(self.clock()))
            else:
                context.total_s = context.elapsed()
                self.supervisor.spawn(self._book_later, context)
        if context.app_call is not None:
            await context.app_call.ended()
        if context.cut_off:
            await asyncio.sleep(CUT_OFF_AFTER_S)

    async def _book_later(self, context: RequestContext) -> None:
        """Keep the call alive for the retry of the client's SDK, and book the request then."""
        try:
            if context.retry_reader is not None:
                await leave_to_retry(context, context.retry_reader)
        finally:
            self.observer.notify(context.served(self.clock()))

    def answer_log(self) -> AnswerLog | None:
        """Return the part that stores logged answers of other tools; None: the cache is off."""
        cache = self.pump.cache
        if cache is None:
            return None
        return AnswerLog(self.preparer, self.admission, cache, self.clock, self.new_id)

    async def _read_and_serve(self, context: RequestContext, app: ASGIApp) -> None:
        """Admit the caller, read and prepare its request, and answer it."""
        context.caller = self.access.admit(context.scope)
        most, timeout_s = self.options.max_body_bytes, self.options.body_timeout_s
        headers = context.scope["headers"]
        body, fits, ended = await read_body(context.receive, most, timeout_s, headers)
        context.body = body.removeprefix(self._mark)
        context.read_at = time.perf_counter()
        if not fits and self.router is None:
            return await self._pass_through(context, app, "body-too-large", complete=ended)
        if not fits:
            context.send = refusing(
                context.scope, context.receive, context.send, unread=not body, ended=ended
            )
            raise body_too_large(most)
        if name := context.scope.get(DEPLOYMENT):
            context.body = with_deployment(context.body, name, self.preparer.values.check)

        dialect = context.endpoint.dialect
        if self.conversations is not None and dialect is not None and dialect.names_answers:
            await self._open_chain(context, self.conversations)
        chain, pass_reason = context.chain, ""
        try:
            body = context.body if chain is None else chain.whole
            endpoint, scope = context.endpoint, context.scope
            context.prepared = (
                self.preparer.prepare(endpoint, scope, body)
                if len(body) <= INLINE_BYTES
                else await self.preparer.prepare_in_thread(endpoint, scope, body)
            )
        except (InvalidRequest, RequestTooLarge) as error:
            if self.router is not None:
                raise
            pass_reason = "unreadable" if isinstance(error, InvalidRequest) else "body-too-large"
        if pass_reason:  # not in ``except``: an error of the app must not name ours as its cause
            return await self._pass_through(context, app, pass_reason)
        if chain is not None and chain.refers:
            context.body = chain.sent(self._upstreams(context))
        context.timings[b"parse"] = time.perf_counter() - context.read_at
        if context.prepared.in_sentences and dialect is not None:
            context.send = SentencePace(context.send, dialect)
        if self.ledger is not None:
            form = (dialect or OPENAI_CHAT).limit_headers
            context.send = self.ledger.with_limit_headers(context.send, context.caller, form)
            await self.ledger.admit_request(context.caller, context.prepared.request)
        await self._serve(context, app)

    async def _open_chain(self, context: RequestContext, conversations: Conversations) -> None:
        """Find the earlier answers to which a request refers by their ids."""
        refuse_compressed(context.scope["headers"])
        if may_refer(context.body):
            owner = self.preparer.owner(context.scope)
            context.chain = await conversations.open(owner, context.body)

    # --- answers from the cache -------------------------------------------------------------------

    async def _serve(self, context: RequestContext, app: ASGIApp) -> None:
        """Answer a request that was prepared: from a draft, the cache, a flight or an upstream."""
        prepared = context.prepared
        if prepared.has_deadline:  # an invalid deadline is refused even before a hit
            self._limit(context)
        if prepared.live and await self._serve_draft(context, app):
            return None
        key, finder = prepared.key, self.finder
        if key is None or finder is None:
            if prepared.directives.only_if_cached:
                raise NotCached(f"no cached answer: {prepared.bypass or 'the cache is off'}")
            return await self._bypass(context, app, prepared.bypass or "disabled")
        if prepared.request is not None and "items" in prepared.request.document:
            return await self._items.answer(context, finder, key, app)
        key, decision = await self._look_up(context, finder, key)
        context.lookup = decision.lookup
        entry, sample = decision.lookup.entry, decision.sample
        if entry is not None and decision.action is not HitAction.ASK:
            now = self.clock()
            try:
                response = self.responder.render(context, entry, now)
            except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
                context.lookup, sample = self._failed("replay", error), None
            else:
                if decision.action is HitAction.SERVE_AND_AUDIT and sample is not None:
                    self._audit(context, key, sample, app)
                self._keep_answer(context)
                return await self.responder.hit(context, entry, response, now)
        if prepared.directives.only_if_cached:
            raise NotCached("no cached answer, and Cache-Control: only-if-cached was asked for")
        await self._miss(context, key, app, sample)

    async def _look_up(
        self, context: RequestContext, finder: Finder, key: CacheKey
    ) -> tuple[CacheKey, HitDecision]:
        """Return the key that was looked up, and the decision. If a step fails, it is a miss."""
        prepared, began = context.prepared, time.perf_counter()
        try:
            if prepared.variants > 1:  # a hit draws one of several answers
                key = variant(key, self._random.randrange(prepared.variants))
            lookup = finder.peek(prepared, key) or await finder.find(
                prepared, key, None if self.shared is None else self._claiming_search(context, key)
            )
            if lookup.entry is None and (request := prepared.request) is not None:
                lost = finder.lost_in_dialect(request, key)
                if lost is not None:
                    # The entry cannot be written in this dialect. It stays for other clients.
                    key = variant(key, request.dialect)
                    lookup = await self._look_up_variant(context, finder, key, lost)
            if lookup.entry is None and self.shared is not None:
                lookup = self._peek_late(context, finder, key) or lookup
            spent_s = time.perf_counter() - began  # includes the wait for the store
            context.timings[b"lookup"] = spent_s - lookup.encode_s - lookup.match_s
            if lookup.encode_s:
                context.timings[b"encode"] = lookup.encode_s
            if lookup.match_s:
                context.timings[b"match"] = lookup.match_s
            return key, self._decide(context, key, lookup)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
            return key, HitDecision(HitAction.ASK, self._failed("lookup", error))

    async def _look_up_variant(
        self, context: RequestContext, finder: Finder, key: CacheKey, lost: str
    ) -> Lookup:
        """Look up the answer that only clients of this dialect get. A miss has the reason ``lost``.

        But a client that wants a new answer, or may not read all answers, is not told ``lost``.
        """
        prepared = context.prepared
        lookup = finder.peek(prepared, key) or await finder.find(
            prepared, key, None if self.shared is None else self._claiming_search(context, key)
        )
        is_told = lookup.reason not in _WANTS_NEW and prepared.readable is None
        if lookup.entry is not None or not is_told:
            return lookup
        return msgspec.structs.replace(lookup, reason=lost)

    def _peek_late(self, context: RequestContext, finder: Finder, key: CacheKey) -> Lookup | None:
        """Peek once more: an equal call may have ended while the store was asked.

        None also while this process holds the lease of such calls: then no other one has ended.
        """
        owned = None if context.claim is None else context.claim.owned
        return finder.peek(context.prepared, key) if owned is None or owned.over else None

    def _claiming_search(self, context: RequestContext, key: CacheKey) -> FindExact | None:
        """Return a search of the store that also takes the lease of the call.

        None: the caller may not read all answers, or wants no call.
        """
        shared, prepared = self.shared, context.prepared
        if shared is None or prepared.readable is not None or prepared.directives.only_if_cached:
            return None
        if context.claim is not None:
            context.claim.close()
        context.claim = claim = LeaseClaim(*_join_key(prepared, key))
        return partial(shared.find, claim)

    def _decide(self, context: RequestContext, key: CacheKey, lookup: Lookup) -> HitDecision:
        """Decide about a lookup. A random share of the hits is held out, to measure the savings."""
        if self.hit_decider is None:
            action = HitAction.ASK if lookup.entry is None else HitAction.SERVE
            decision = HitDecision(action, lookup)
        else:
            allowed = AllowedChecks(
                ask=not context.prepared.directives.only_if_cached,
                twice=(self.router is not None and context.endpoint.document is None)
                or context.endpoint.idempotent,
            )
            match_context = context.prepared.match_context
            decision = self.hit_decider.decide(context.id, lookup, key, match_context, may=allowed)
        holdout = self.options.holdout
        if not holdout or decision.action is HitAction.ASK or self._random.random() >= holdout:
            return decision
        context.held_out = lookup.entry
        if self.hit_decider is not None:
            self.hit_decider.learner.mark_unserved(context.id)
        held = msgspec.structs.replace(lookup, outcome=Outcome.MISS, entry=None, reason="holdout")
        sample = decision.sample
        # The holdout was drawn, so its label is weighted by this probability.
        if sample is not None:
            sample = sample._replace(draw_probability=holdout)
        return HitDecision(HitAction.ASK, held, sample)

    # --- answers of upstreams ---------------------------------------------------------------------

    async def _miss(
        self, context: RequestContext, key: CacheKey, app: ASGIApp, sample: FeedbackSample | None
    ) -> None:
        """Join the flight of an equal call, or else begin one, and send its answer."""
        join_key = _join_key(context.prepared, key)
        self._limit(context)
        twin = None
        if self.flights and context.held_out is None:
            flight = self.flights.find(join_key, context.begin_by)
            if flight is None:
                twin = self._twin_of(context, join_key)
            elif await self._join_equal(context, flight):
                return
        # A sample of the misses is asked twice, to measure the judge of answers.
        asks_twice = sample is not None and sample.twice
        second = context.without_client(context.id) if asks_twice else None
        flight = self._start(context, key, join_key, app, sample, twin=twin)
        if second is not None:
            self.calls.spawn(self._null_audit, second, key, app, flight)
        await self._join(context, flight)

    async def _join_equal(self, context: RequestContext, flight: Flight) -> bool:
        """Join the flight of an equal call; False: its answer is not for this request."""
        if flight.whole and context.lookup.reason in _WANTS_NEW:
            return False  # the caller rejects the answer that this flight already has
        own_lookup, context.lookup = context.lookup, Lookup(outcome=Outcome.JOINED)
        if context.claim is not None:
            context.claim.close()
        try:
            await self._join(context, flight)
        except NotForOthers:
            context.lookup = own_lookup
            return False
        except _LIMITS_OF_KEYS:
            if context.status or flight.caller == context.caller:
                raise
            context.lookup = own_lookup
            return False
        return True

    def _twin_of(self, context: RequestContext, join_key: tuple[Any, AnswerForm]) -> Flight | None:
        """Return the flight of the same answer in the other form: as a stream, or whole."""
        same, form = join_key
        if context.lookup.reason in _WANTS_NEW:
            return None
        twins = [(same, ANSWER_FORMS[not form.stream, usage]) for usage in (False, True)]
        found = (self.flights.find(each, context.begin_by) for each in twins)
        return next((flight for flight in found if flight is not None), None)

    async def _bypass(self, context: RequestContext, app: ASGIApp, reason: str) -> None:
        """Let an upstream answer, past the cache and without equal calls."""
        if self.router is None:
            return await self._pass_through(context, app, reason)
        context.lookup = Lookup(outcome=Outcome.BYPASS, reason=reason)
        self._limit(context)
        context.retry_from = None  # nobody can join a call without a key
        flight = self._start(context, None, None, app, editable=reason in EDITABLE)
        await self._join(context, flight)

    async def _pass_through(
        self, context: RequestContext, app: ASGIApp, reason: str, *, complete: bool = True
    ) -> None:
        """Let the wrapped app answer, without reading its answer."""
        context.lookup = Lookup(outcome=Outcome.BYPASS, reason=reason)
        await self.responder.through_app(context, app, complete=complete)

    def _start(
        self,
        context: RequestContext,
        key: CacheKey | None,
        join_key: tuple[object, ...] | None,
        app: ASGIApp,
        sample: FeedbackSample | None = None,
        *,
        editable: bool = True,
        body: bytes | None = None,
        twin: Flight | None = None,
        unasked: bool = False,
    ) -> Flight:
        """Begin an upstream call that belongs to no client. Call ``_join`` before any await.

        ``key``: the answer is stored under it, unless it is None. ``join_key``: others may join,
        unless it is None. ``body`` is sent in place of the client's. ``twin`` is the flight of the
        same answer in the other form. ``unasked``: it is the call of a live draft.
        """
        endpoint, prepared = context.endpoint, context.prepared
        predicts = self._routes.get(prepared.route, NO_ROUTE).predicts
        call = context.call(
            editable=editable, predicts=predicts, body=body, checks=bool(sample and sample.served)
        )

        # Who answers: the app or a provider, or else an equal call elsewhere or in another form.
        upstream: Upstream
        if self.router is None:
            upstream = context.app_call = AppUpstream(
                app, context.scope, endpoint.dialect, self.spawn
            )
        else:
            upstream, call = self.router.assign(call, prepared.scope, prepared.route)
        held = LOG_BYTES if endpoint.document is None else HELD_DOCUMENT_BYTES
        flight = Flight(held, call.deadline, context.caller)
        claim, elsewhere = context.claim, None
        if claim is not None and join_key is not None and context.held_out is None:
            elsewhere = claim.elsewhere
        if elsewhere is not None:
            upstream = self._waiting(context, flight, upstream, None)
        elif twin is not None:
            upstream = self._waiting(context, flight, upstream, twin)

        if join_key is not None:
            self.flights[join_key] = flight
            if claim is not None:
                claim.begin(flight)
        pumped = PumpedCall(
            self.pump, flight, call, upstream, endpoint.dialect, prepared,
            key=key, join_key=flight if join_key is None else join_key, sample=sample,
        )  # fmt: skip
        if unasked:
            flight.unasked = pumped
        flight.pump = self.calls.spawn(pumped.run)
        return flight

    def _waiting(
        self, context: RequestContext, flight: Flight, upstream: Upstream, twin: Flight | None
    ) -> Upstream:
        """Return a candidate that gives the answer of an equal call, or else asks ``upstream``.

        The equal call is ``twin``; None: another process makes it.
        """
        from headstart.middleware.upstreams.followed import AwaitedTwin, FollowedCall, WaitingCall

        render = partial(self._render_for, context)
        own = WaitingCall(upstream, context.endpoint.dialect, render, self.options.join_streams)
        if twin is not None:
            return AwaitedTwin(twin, own)
        assert self.shared is not None
        assert context.claim is not None
        rescued = self._routes.get(context.prepared.route, NO_ROUTE).rescued
        return FollowedCall(self.shared, context.claim, flight, own, rescued)

    def _render_for(self, context: RequestContext, entry: Entry) -> StoredResponse | None:
        """Return an entry that was stored since the lookup; None if it must not answer."""
        if self.finder is None or self.finder.refuses(context.prepared, entry):
            return None
        return self.responder.render(context, entry, self.clock())

    def _join(
        self, context: RequestContext, flight: Flight, compose: Compose | None = None
    ) -> Coroutine[Any, Any, None]:
        """Join a flight. Await the result to send the answer."""
        self._keep_answer(context)
        early_200_s = self._routes.get(context.prepared.route, NO_ROUTE).early_200_s
        return self.responder.send_flight(context, flight, early_200_s, compose)

    # --- calls that check answers -----------------------------------------------------------------

    def _audit(
        self, context: RequestContext, key: CacheKey, sample: FeedbackSample, app: ASGIApp
    ) -> None:
        """Ask the provider for an answer that no client waits for, and book it as an audit."""
        asked = context.without_client(sample.id)
        flight = self._start(asked, key, None, app, sample)
        assert flight.pump is not None
        assert self.hit_decider is not None
        book = partial(self.hit_decider.book_audit, self.new_id(), flight, context, sample)
        flight.pump.add_done_callback(book)

    async def _null_audit(
        self, context: RequestContext, key: CacheKey, app: ASGIApp, flight: Flight
    ) -> None:
        """Ask for a second answer to a miss, when the first one is stored, to measure the judge."""
        assert flight.pump is not None
        assert self.hit_decider is not None
        await asyncio.wait((flight.pump,))
        first, match_context = flight.entry, context.prepared.match_context
        # Answers that call tools are not compared.
        if first and key.query is not None and not calls_tools(first) and not self.calls.stopping:
            sample = self.hit_decider.null_sample(
                self.new_id(), first, key.query, match_context, stores=False
            )
            self._audit(context, key, sample, app)

    # --- for several stages -----------------------------------------------------------------------

    def _limit(self, context: RequestContext) -> None:
        """Bound the time of a request. Raises InvalidRequest."""
        of_route = self._routes.get(context.prepared.route, NO_ROUTE).deadline_s
        context.limit(self.options.deadline_s if of_route is None else of_route)

    def _upstreams(self, context: RequestContext) -> frozenset[str]:
        """Return the upstreams that may answer a request of a dialect. Raises NoUpstream."""
        dialect, prepared = context.endpoint.dialect, context.prepared
        if self.router is None or dialect is None or prepared.request is None:
            return frozenset()
        return self.router.choose(dialect.name, prepared.request.model, prepared.route).names

    def _keep_answer(self, context: RequestContext) -> None:
        """Keep the answer while it is sent, if later calls may name it."""
        kept, prepared, chain = self.conversations, context.prepared, context.chain
        if kept is None or not prepared.owner or prepared.directives.no_store:
            return
        if prepared.never_stored:  # the text of the answer, which may match, is not known yet
            return
        if context.answer_id and kept.holds(prepared.owner, context.answer_id):
            return
        if chain is None and not may_refer(context.body):
            chain = kept.begin(context.body)
        if chain is not None:
            source = partial(_source_of, context)
            context.send = chain.keeping(context.send, prepared.owner, source)

    def _failed(self, stage: str, error: Exception) -> Lookup:
        """Report a stage that failed; return a miss, with which the request goes on."""
        self.observer.notify(StageFailed(stage=stage, error=type(error).__name__))
        return Lookup(outcome=Outcome.MISS, reason=f"{stage}-error")

    # --- live drafts: see ``live_drafts.py`` ------------------------------------------------------

    def admitted_owner(self, scope: Scope) -> str | None:
        """Return the digest of a caller who may come in. Raises Unauthorized or Forbidden."""
        self.access.admit(scope)
        return self.preparer.owner(scope)

    def draft(
        self, scope: Scope, endpoint: MatchedEndpoint, body: bytes, affinity: str
    ) -> RequestContext:
        """Return the request of a draft. Raises RequestError.

        Calls of one ``affinity`` should stay with one provider, whose prompt cache they fill.
        """
        path = raw_path(scope)
        context = RequestContext(self.new_id(), endpoint, path, scope, _nobody, _nobody)
        context.affinity = affinity
        context.caller = self.access.admit(scope)
        context.body = body
        context.prepared = self.preparer.prepare(endpoint, scope, body)
        return context

    def limited_draft(self, context: RequestContext, tokens: int) -> RequestContext:
        """Return the same request with a limit on its answer. Raises RequestError."""
        request = context.prepared.request
        if request is None:
            return context
        body = limited_body(request, tokens)
        return self.draft(context.scope, context.endpoint, body, context.affinity)

    async def admit_draft(self, context: RequestContext) -> None:
        """Apply the limits of the caller's key to a call. Raises RequestError."""
        request = context.prepared.request
        if self.ledger is not None and request is not None:
            await self.ledger.admit_request(context.caller, request)

    async def look_up_draft(self, context: RequestContext) -> bool | None:
        """Return whether the cache has the answer; None if such requests are not looked up."""
        prepared, finder = context.prepared, self.finder
        key = prepared.key
        if key is None or finder is None or prepared.request is None or prepared.variants > 1:
            return None
        lookup = finder.peek(prepared, key) or await finder.find(prepared, key)
        return lookup.entry is not None

    def estimate_draft(self, context: RequestContext, *, cold: bool = False) -> RoutingEstimate:
        """Return the estimate of a draft's call. Raises NoUpstream.

        ``cold``: as if the provider has no part of the prompt in its prompt cache.
        """
        assert self.router is not None
        prepared = context.prepared
        candidate, call = self.router.assign(
            context.call(editable=True), prepared.scope, prepared.route
        )
        return candidate.estimate(msgspec.structs.replace(call, affinity="") if cold else call)

    def connect_early(self, context: RequestContext) -> None:
        """Open a connection to the upstream that would be asked."""
        request, dialect = context.prepared.request, context.endpoint.dialect
        if self.router is not None and request is not None and dialect is not None:
            found = self.router.providers_for(dialect.name, request.model, context.prepared.route)
            if found:
                found[0].connect_early(self.supervisor.spawn)

    def start_draft(self, context: RequestContext) -> Flight:
        """Make the call before its client asks.

        Its answer is stored only if a request adopts it; ``live_drafts`` books its cost.
        """
        reason = context.prepared.bypass
        editable = reason is None or reason in EDITABLE
        flight = self._start(context, None, None, _nobody, editable=editable, unasked=True)
        flight.book_apart()
        return flight

    def sends_alike(self, one: Scope, other: Scope) -> bool:
        """Tell whether two requests have equal headers, as far as they reach the provider."""
        return self.preparer.conditions(one) == self.preparer.conditions(other)

    async def _serve_draft(self, context: RequestContext, app: ASGIApp) -> bool:
        """Answer with the call that was made while the prompt was written, if there is one."""
        drafts, prepared, lookup = self.drafts, context.prepared, context.lookup
        if drafts is None or prepared.directives.only_if_cached:
            return False
        try:
            kept = drafts.take_call(context)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
            self._failed("live", error)
            return False
        if kept is None:
            return False
        if isinstance(kept, bytes):
            whole = self.preparer.prepare(context.endpoint, context.scope, kept)
            context.body, context.prepared = kept, msgspec.structs.replace(whole, key=None)
            await self._bypass(context, app, LIVE_INFERENCES)
            return True
        self._limit(context)
        self._adopt(context, kept)
        context.lookup = Lookup(outcome=Outcome.JOINED, reason=LIVE_DRAFT)
        try:
            await self._join(context, kept.flight)
        except (NotForOthers, UpstreamError, *_LIMITS_OF_KEYS):
            if context.status:
                raise
            context.lookup = lookup  # the call of the draft failed: the request makes its own
            return False
        finally:
            kept.flight.leave(kept.reader)
        return True

    def _adopt(self, context: RequestContext, kept: KeptCall) -> None:
        """Let the answer be stored, if it answers exactly the same request."""
        flight, prepared, key = kept.flight, context.prepared, context.prepared.key
        pumped, flight.unasked = flight.unasked, None
        if pumped is None or key is None or prepared.request is None or self.finder is None:
            return
        first = kept.context.prepared.key
        if first is None or first.exact != key.exact:
            return
        if self.finder.lost_in_dialect(prepared.request, key) is not None:
            return
        if prepared.variants > 1:
            key = variant(key, self._random.randrange(prepared.variants))
        try:
            if pumped.adopt(key, prepared):
                self.calls.spawn(pumped.store)
        except Exception as error:  # noqa: BLE001 - the answer is served nevertheless
            self._failed("live", error)
