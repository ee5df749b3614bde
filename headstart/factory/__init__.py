"""The composition root: it makes the running engine from settings, and loads heavy libraries.

``start_engine`` opens the parts in this order, because each needs parts before it:

1. store, encoder and cache (``caching.py``), and tracing (``telemetry.py``);
2. upstreams (``upstreams.py``), and the router over them (``routing.py``);
3. learning from the answers of upstreams (``caching.py``), the logs and the books;
4. the engine and the services beside it (``EngineBuilder``).

An ``AsyncExitStack`` closes what is open in the opposite order, at the end or after an error.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from headstart.config.checks import has_no_list
from headstart.dialects.registry import DIALECTS, DOCUMENTS
from headstart.errors import ConfigError
from headstart.factory import caching, routing, upstreams
from headstart.factory.context import BuildContext, clock, follow_secret, new_id, persist
from headstart.factory.telemetry import open_telemetry
from headstart.interfaces import CallExchange, SharedStore, Store, SwapStore
from headstart.middleware.admin_front import EngineParts
from headstart.middleware.asgi import StartedEngine, not_found
from headstart.middleware.client_ledger import ClientLedger
from headstart.middleware.concurrency import ConcurrencyLimit, Supervisor
from headstart.middleware.conversations import Conversations
from headstart.middleware.endpoints import EndpointTable
from headstart.middleware.flights import Flights
from headstart.middleware.identity import (
    AcceptedCredentials,
    AccessControl,
    ClientKey,
    SharingOptions,
)
from headstart.middleware.live_drafts import LiveDrafts
from headstart.middleware.lookup import Finder, RecentAnswers
from headstart.middleware.observers import (
    AccessLog,
    Bookkeeper,
    FailureLog,
    FirstBytes,
    UnpricedModels,
)
from headstart.middleware.pipeline import Engine, EngineOptions
from headstart.middleware.prepare import Preparer, ValueLimit
from headstart.middleware.pump import Pump
from headstart.middleware.relay import KeptResponses, Relay
from headstart.middleware.respond import RenderedAnswers, Responder
from headstart.middleware.router import ModelLists, Router
from headstart.middleware.shared_flights import SharedFlights
from headstart.middleware.upstreams.app import AppUpstream
from headstart.middleware.upstreams.node_limits import NodeLimits
from headstart.middleware.websocket_relay import WebSocketRelay
from headstart.policies.callers import OriginRules
from headstart.policies.gate import EncoderWaitLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.embeddings.stores.memory import MemoryStore
    from headstart.factory.upstreams import OpenedUpstream
    from headstart.middleware.batches.service import BatchService
    from headstart.middleware.learning.hit_decisions import HitDecider
    from headstart.middleware.observers import Observers
    from headstart.middleware.record import Recorder
    from headstart.middleware.telemetry import Tracing
    from headstart.middleware.upstreams.accounting import UpstreamStates
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.settings import Settings
    from headstart.types import Receive, Scope, Send


@dataclass(frozen=True)
class Providers:
    """The parts that call providers. Where a wrapped app answers, there are none."""

    states: UpstreamStates
    ledger: ClientLedger | None
    opened: tuple[OpenedUpstream, ...]
    router: Router


async def start_engine(
    settings: Settings,
    observers: Observers,
    *,
    wrapped: bool,
    resolve: Callable[[Scope], str | None] | None = None,
    origins: OriginRules | None = None,
    on_start: Callable[[EngineParts], None] | None = None,
    states: UpstreamStates | None = None,
    exchange: Callable[[Store], CallExchange] | None = None,
    make_upstream: Callable[..., HTTPUpstream] | None = None,
    memory: MemoryStore | None = None,
) -> StartedEngine:
    """Open store, encoder, index and upstreams, and return a running engine.

    ``wrapped``: an app answers, and no provider. ``resolve`` returns the group of callers that
    share answers. ``origins`` are the rules for requests of web pages. ``on_start`` gets the open
    parts, for the admin API. ``states`` are the states of the upstreams,
    if they outlive the engine. ``exchange`` reaches the other processes of the machine; a store
    that all processes share has its own. ``make_upstream`` takes the place of ``HTTPUpstream``.
    ``memory`` is the store of an engine whose event loop has ended: it lives as long as the
    process. Raises ConfigError, and closes all parts that were opened by then.
    """
    observers = observers.for_engine()
    async with AsyncExitStack() as stack:
        supervisor = Supervisor()
        stack.push_async_callback(supervisor.aclose)
        store = caching.make_store(settings.cache, observers, memory)
        build = BuildContext(settings, store, observers, supervisor, stack)
        encoder = await caching.open_encoder(build)
        domains = caching.make_domains(build)
        policy = caching.make_policy(settings.cache, domains)
        cache = await caching.open_cache(build, encoder, policy)
        tracing = await open_telemetry(build)
        providers = None
        if not wrapped:
            providers = await _open_providers(build, states, tracing, make_upstream)
        opened = () if providers is None else providers.opened
        second = caching.make_second_opinion(build, opened)
        hit_decider = await caching.open_hit_decider(
            build, domains, encoder, policy.version, second
        )
        _open_logs_and_books(build, opened, tracing)
        parts = _engine_parts(build, cache, encoder, hit_decider, providers)
        learning = "" if encoder is None else f"{encoder.namespace} {policy.version}"
        builder = EngineBuilder(build, parts, providers, learning, resolve, origins)
        engine, services = await builder.open(exchange)
        if on_start is not None:
            on_start(parts)
        kept = cast("MemoryStore", store) if settings.cache.store == "memory:" else None
        return StartedEngine(engine, stack.pop_all().aclose, tracing, *services, memory=kept)
    # For type checkers, which think that the stack may swallow an error.
    raise AssertionError("unreachable")


def _engine_parts(
    build: BuildContext,
    cache: SemanticCache | None,
    encoder: EncoderWorker | None,
    hit_decider: HitDecider | None,
    providers: Providers | None,
) -> EngineParts:
    """Return the open parts, with the limits on what runs at the same time."""
    server = build.settings.server
    return EngineParts(
        store=build.store,
        cache=cache,
        encoder=encoder,
        hit_decider=hit_decider,
        flights=Flights(),
        concurrency=ConcurrencyLimit(server.max_concurrency, server.max_queue),
        # Relayed calls have their own limit, so that slow ones do not delay chat requests.
        relays=ConcurrencyLimit(server.max_relays, server.max_queue, "server.max_relays"),
        sockets=ConcurrencyLimit(server.max_websockets, 0, "server.max_websockets"),
        ledger=None if providers is None else providers.ledger,
        states=None if providers is None else providers.states,
        machines=upstreams.machines_of(build.settings),
    )


async def _open_providers(
    build: BuildContext,
    states: UpstreamStates | None,
    tracing: Tracing | None,
    make: Callable[..., HTTPUpstream] | None,
) -> Providers:
    """Open the upstreams with their states, their router, and the ledger of client limits.

    Raises ConfigError.
    """
    settings, store, spawn = build.settings, build.store, build.supervisor.spawn
    states, ledger = await upstreams.open_states(build, states), _open_ledger(build)
    nodes = None
    if isinstance(store, SwapStore):
        nodes = NodeLimits(store, await store.secret(), spawn)
        build.stack.callback(nodes.close)
    opened = await upstreams.open_upstreams(
        settings,
        states,
        build.stack,
        spawn,
        tracing=tracing,
        ledger=ledger,
        make=make,
        nodes=nodes,
    )
    built = routing.make_router(settings, opened, await routing.open_shaping(build, opened), states)
    for name, panel in built.panels.items():
        await persist(build, name, "cascade", saved=panel.saved, load=panel.load)
    return Providers(states, ledger, opened, built.router)


def _open_ledger(build: BuildContext) -> ClientLedger | None:
    """Return the ledger that enforces client limits; None if none are set. Raises ConfigError."""
    limits = build.settings.server.limits_by_client
    if not limits:
        return None
    if not hasattr(build.store, "charge"):
        raise ConfigError(
            "server.client_limits: the store of cache.store is of another distribution and has no "
            "method charge, which counts what callers use; use a store that has it"
        )
    ledger = ClientLedger(
        limits,
        store=build.store,
        clock=clock,
        spawn=build.supervisor.spawn,
        observer=build.observers,
    )
    build.stack.push_async_callback(ledger.aclose)
    return ledger


def _open_logs_and_books(
    build: BuildContext, opened: tuple[OpenedUpstream, ...], tracing: Tracing | None
) -> None:
    """Add the observers that write the logs and the books."""
    observers, access_log = build.observers, build.settings.server.access_log
    observers.add(FailureLog(unpriced=UnpricedModels(upstreams.billing_names(opened))))
    if access_log != "off":
        trace_id = None if tracing is None else tracing.trace_id
        observers.add(AccessLog(as_json=access_log == "json", trace_id=trace_id))
    books = Bookkeeper(build.store, observers)
    observers.add(books)
    build.supervisor.spawn(books.run)
    build.stack.push_async_callback(books.flush)


class _Services(NamedTuple):
    """The parts beside the engine that answer requests. With a wrapped app there are none."""

    relay: Relay | None = None
    sockets: WebSocketRelay | None = None
    kept: KeptResponses | None = None
    drafts: LiveDrafts | None = None
    batches: BatchService | None = None


@dataclass(eq=False, repr=False)
class EngineBuilder:
    """Makes the engine, and the services beside it, from parts that are open.

    ``providers`` is None where a wrapped app answers. ``learning`` names the encoder and the guards
    to which a learning domain belongs. ``resolve`` returns the group of callers that share answers.
    """

    build: BuildContext
    parts: EngineParts
    providers: Providers | None
    learning: str
    resolve: InitVar[Callable[[Scope], str | None] | None]
    origins: OriginRules | None

    def __post_init__(self, resolve: Callable[[Scope], str | None] | None) -> None:
        build, settings = self.build, self.build.settings
        cache = settings.cache
        self._settings, self._observers = settings, build.observers
        self._spawn, self._close_later = build.supervisor.spawn, build.stack.push_async_callback
        self._router = None if self.providers is None else self.providers.router
        self._sharing = _sharing_options(settings, self._router, resolve)
        self._access = AccessControl(self._sharing.client_keys, self.origins)
        self._accepted = AcceptedCredentials(time.monotonic)
        self._admission = caching.admission_of(cache)
        self._values = ValueLimit(settings.server.max_body_values)

    async def open(
        self, exchange: Callable[[Store], CallExchange] | None
    ) -> tuple[Engine, _Services]:
        """Return the engine and the services. Raises ConfigError."""
        conversations = None
        if self.providers is not None:
            shared = exchange is not None or isinstance(self.build.store, SharedStore)
            conversations = self._open_conversations(shared=shared)
        calls = Supervisor()
        engine = self._make_engine(
            await self.build.store.secret(),
            conversations,
            await caching.open_recorder(self.build),
            self._open_shared_flights(exchange),
            calls,
        )
        follow_secret(self.build, engine.preparer.renew)
        self._close_later(calls.drain, self._settings.server.shutdown_s)
        if self.providers is None:
            return engine, _Services()
        return engine, await self._open_services(self.providers, engine, conversations)

    # --- the engine ------------------------------------------------------------------------------

    def _make_engine(
        self,
        secret: bytes,
        conversations: Conversations | None,
        recorder: Recorder | None,
        shared: SharedFlights | None,
        calls: Supervisor,
    ) -> Engine:
        parts, server, cache = self.parts, self._settings.server, self._settings.cache
        wrapped, supervisor = self._router is None, self.build.supervisor
        return Engine(
            EngineOptions(
                max_body_bytes=server.max_body_bytes,
                # The server of a wrapped app has its own limits.
                body_timeout_s=None if wrapped else server.body_timeout_s,
                deadline_s=server.deadline_s,
                holdout=cache.holdout,
                join_streams=cache.join_streams,
            ),
            access=self._access,
            finder=self._make_finder(),
            hit_decider=parts.hit_decider,
            admission=self._admission,
            preparer=self._make_preparer(secret),
            pump=self._make_pump(recorder),
            flights=parts.flights,
            responder=Responder(
                RenderedAnswers(cache.hot_bytes // 4), supervisor.spawn, names_requests=not wrapped
            ),
            supervisor=supervisor,
            calls=calls,
            observer=self._observers,
            clock=clock,
            new_id=new_id,
            router=self._router,
            conversations=conversations,
            ledger=parts.ledger,
            shared=shared,
        )

    def _make_finder(self) -> Finder | None:
        parts = self.parts
        if parts.cache is None:
            return None
        wait_limit = None
        if parts.encoder is not None and self._settings.encoder.max_wait_ms is None:
            wait_limit = EncoderWaitLimit()
            self._observers.add(FirstBytes(wait_limit))
        return Finder(
            parts.cache,
            self._admission,
            parts.hit_decider,
            clock=clock,
            answered=RecentAnswers(time.monotonic),
            concise={
                name: each.concise
                for name, each in routing.outputs_by_route(self._settings).items()
            },
            wait_limit=wait_limit,
        )

    def _make_preparer(self, secret: bytes) -> Preparer:
        router, cache, app = self._router, self._settings.cache, AppUpstream.name
        return Preparer(
            self._sharing,
            self._admission,
            self._accepted,
            secret=secret,
            upstreams=(lambda *_: (app, frozenset((app,)))) if router is None else router.upstreams,
            observer=self._observers,
            semantic=cache.mode != "exact-only",
            rules=tuple(map(routing.route_rule, self._settings.route)),
            never_stored=routing.expressions(cache.never_stored),
            max_error=cache.max_error,
            cached_tools=routing.one_or_more(cache.cached_tools),
            learning=self.learning,
            lifetimes=routing.lifetimes(cache),
            values=self._values,
            templates=cache.templates,
        )

    def _make_pump(self, recorder: Recorder | None) -> Pump:
        parts = self.parts
        return Pump(
            cache=parts.cache,
            learner=None if parts.hit_decider is None else parts.hit_decider.learner,
            admission=self._admission,
            accepted=self._accepted,
            flights=parts.flights,
            concurrency=parts.concurrency,
            clock=clock,
            recorder=recorder,
            observer=self._observers,
            wrapped=self._sharing.wrapped,
            keyed=self._sharing.binds,
        )

    def _open_conversations(self, *, shared: bool) -> Conversations | None:
        """Return the answers that later requests may name by their ids; None: they are not kept."""
        limits = self._settings.server.conversations
        if not limits.enabled:
            return None
        in_memory = self._settings.cache.store.startswith("memory:")
        cache = self.parts.cache
        conversations = Conversations(
            limits,
            clock=clock,
            store=None if in_memory else self.build.store,
            spawn=self._spawn,
            observer=self._observers,
            touch=(lambda _: None) if cache is None else cache.touch,
            one_account=bool(self._sharing.own_keys),
            shared=shared,
            values=self._values,
        )
        if cache is not None and not in_memory:
            cache.when_deleted(conversations.reread)
        self._close_later(conversations.aclose)
        return conversations

    def _open_shared_flights(
        self, exchange: Callable[[Store], CallExchange] | None
    ) -> SharedFlights | None:
        """Return the part that joins equal calls of several processes; None for one process."""
        store, cache = self.build.store, self.parts.cache
        if cache is None or not self._settings.cache.join_processes:
            return None
        if isinstance(store, SharedStore):
            found = store.exchange()
        elif exchange is not None:
            found = exchange(store)
        else:
            return None
        shared = SharedFlights(found, self._spawn, self._observers, cache.peek_exact)
        self.build.run(shared.run)
        self._close_later(shared.aclose)
        return shared

    # --- the services beside the engine ----------------------------------------------------------

    async def _open_services(
        self, providers: Providers, engine: Engine, conversations: Conversations | None
    ) -> _Services:
        """Open the services. They close before the engine does. Raises ConfigError."""
        sockets, kept = self._make_sockets(providers), None
        if conversations is not None:
            kept = KeptResponses(
                conversations,
                observer=self._observers,
                clock=clock,
                access=self._access,
                owner=engine.preparer.owner,
                dialect=next(each for each in DIALECTS.values() if each.names_answers),
                new_id=new_id,
            )
        relay = await self._open_relay(providers, kept)
        self._close_later(sockets.aclose)
        return _Services(
            relay, sockets, kept, self._open_drafts(engine), await self._open_batches(engine)
        )

    def _make_sockets(self, providers: Providers) -> WebSocketRelay:
        """Return the relay of WebSockets. Nothing is open before the first connection."""
        server, origins = self._settings.server, self.origins
        if origins is None and not self._sharing.client_keys:
            # Browsers let any page open a WebSocket, so CORS rules of an app around us do not help.
            origins = OriginRules(None, server.allowed_origins)
        return WebSocketRelay(
            routing.socket_upstreams(self._settings.route, providers.opened, providers.router),
            concurrency=self.parts.sockets,
            spawn=self._spawn,
            new_id=new_id,
            access=AccessControl(self._sharing.client_keys, origins),
            ledger=self.parts.ledger,
            limits=server,
            observer=self._observers,
            clock=clock,
        )

    async def _open_relay(self, providers: Providers, kept: KeptResponses | None) -> Relay:
        """Return the relay, with the lists of models of an earlier run."""
        opened, router, ledger = providers.opened, providers.router, self.parts.ledger
        rules = tuple(map(routing.route_rule, self._settings.route))
        sources = upstreams.list_sources(opened, self._settings)
        models = ModelLists(
            router,
            rules,
            sources.open,
            spawn=self._spawn,
            clock=clock,
            new_id=new_id,
            observer=self._observers,
            allows=None if ledger is None else ledger.allows,
            no_lists=all(has_no_list(each.settings) for each in opened),
            keyed=sources.keyed,
        )
        await persist(self.build, "model-lists", "models", saved=models.saved, load=models.load)
        return Relay(
            router,
            rules=rules,
            models=models,
            kept=kept,
            concurrency=self.parts.relays,
            spawn=self._spawn,
            clock=clock,
            new_id=new_id,
            access=self._access,
            ledger=ledger,
            limits=self._settings.server,
            observer=self._observers,
        )

    def _open_drafts(self, engine: Engine) -> LiveDrafts | None:
        """Return the live drafts, and give them to the engine; None: they are off."""
        if not self._settings.live.enabled:
            return None
        engine.drafts = drafts = LiveDrafts(
            self._settings.live,
            engine,
            EndpointTable(DIALECTS.values(), ()),
            observer=self._observers,
            clock=clock,
            new_id=lambda: secrets.token_urlsafe(18),
            sockets=self.parts.sockets,
            limits=self._settings.server,
        )
        self._close_later(drafts.aclose)
        return drafts

    async def _open_batches(self, engine: Engine) -> BatchService | None:
        """Return the service for batches of clients; None: they are relayed. Raises ConfigError."""
        settings = self._settings
        if settings.batches.dir is None:
            return None
        from headstart.middleware.batches.journal import BatchFolder
        from headstart.middleware.batches.service import BatchService

        folder = BatchFolder(Path(settings.batches.dir))
        try:
            await asyncio.to_thread(folder.prepare, clock())
        except OSError as error:
            raise ConfigError(f"batches.dir: is not a folder to write to: {error}") from error
        endpoints = EndpointTable(DIALECTS.values(), (), DOCUMENTS.values())

        async def ask(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["raw_path"]
            endpoint = endpoints.match("POST", path)
            assert endpoint is not None  # the service has no other path
            await engine.handle(endpoint, path, scope, receive, send, not_found)

        service = BatchService(
            settings.batches,
            folder,
            ask,
            owner=engine.admitted_owner,
            spawn=self._spawn,
            clock=clock,
            request_id=new_id,
            body_timeout_s=settings.server.body_timeout_s,
            check=self._values.check,
        )
        self._observers.add(service.books)
        self._close_later(service.aclose)
        return service


def _sharing_options(
    settings: Settings, router: Router | None, resolve: Callable[[Scope], str | None] | None
) -> SharingOptions:
    """Return the rules for sharing answers. Without a router, a wrapped app answers."""
    cache, server, wrapped = settings.cache, settings.server, router is None
    return SharingOptions(
        scope=cache.scope,
        share_users=cache.share_users,
        anonymous=not wrapped and server.is_loopback,
        wrapped=wrapped,
        resolve=resolve,
        client_keys=()
        if wrapped
        else tuple(ClientKey(name, key.encode()) for name, key in server.named_client_keys),
        trusted_proxies=server.trusted_proxies,
        key_headers=(
            *(name.lower().encode() for name in cache.key_headers),
            *((b"origin",) if wrapped else ()),  # a wrapped app's CORS answers differ by origin
        ),
        ignore_headers=tuple(name.lower().encode() for name in cache.ignore_headers),
        own_keys=frozenset() if router is None else router.own_keys,
    )
