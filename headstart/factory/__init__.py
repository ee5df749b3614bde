"""The composition root: it makes the running engine from settings, and loads heavy libraries."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from headstart.config.checks import has_no_list
from headstart.dialects.registry import DIALECTS, DOCUMENTS
from headstart.errors import ConfigError
from headstart.factory.caching import (
    make_domains,
    make_policy,
    make_second_opinion,
    make_store,
    open_cache,
    open_encoder,
    open_hit_decider,
    open_recorder,
)
from headstart.factory.context import BuildContext, clock, follow_secret, new_id, persist
from headstart.factory.routing import (
    concise_levels,
    expressions,
    lifetimes,
    make_router,
    one_or_more,
    open_shaping,
    route_rule,
    socket_upstreams,
)
from headstart.factory.telemetry import open_telemetry
from headstart.factory.upstreams import (
    billing_names,
    list_sources,
    machines_of,
    open_states,
    open_upstreams,
)
from headstart.interfaces import CallExchange, SharedStore, Store, SwapStore
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
from headstart.policies.admission import Admission
from headstart.policies.callers import OriginRules
from headstart.policies.gate import EncoderWaitLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    from headstart.middleware.upstreams.cascade import JudgePanel
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.settings import Settings
    from headstart.types import Receive, Scope, Send
    from headstart.usual_calls import Machine


@dataclass(frozen=True)
class Parts:
    """The parts of a started engine, for the admin pages and the metrics."""

    settings: Settings
    observers: Observers
    cache: SemanticCache | None
    store: Store
    encoder: EncoderWorker | None
    flights: Flights
    concurrency: ConcurrencyLimit
    relays: ConcurrencyLimit
    sockets: ConcurrencyLimit
    supervisor: Supervisor
    hit_decider: HitDecider | None
    states: UpstreamStates | None
    """The health and figures of upstreams; None where a wrapped app answers."""
    ledger: ClientLedger | None
    """Counts the use of the limits of client keys; None: there are no limits."""
    learning: str
    """The encoder and the guards that a learning domain belongs to."""
    machines: Mapping[str, Machine]
    """The upstreams that are paid by the hour, by name."""


async def start_engine(
    settings: Settings,
    observers: Observers,
    *,
    wrapped: bool,
    resolve: Callable[[Scope], str | None] | None = None,
    origins: OriginRules | None = None,
    on_start: Callable[[Parts], None] | None = None,
    states: UpstreamStates | None = None,
    exchange: Callable[[Store], CallExchange] | None = None,
    make_upstream: Callable[..., HTTPUpstream] | None = None,
    memory: MemoryStore | None = None,
) -> StartedEngine:
    """Open store, encoder, index and upstreams, and return a running engine.

    ``origins`` are the rules for requests of web pages. ``states`` are the states of the upstreams,
    if they outlive the engine. ``exchange`` reaches the other processes of the machine; a store
    that all processes share has its own. ``make_upstream`` takes the place of ``HTTPUpstream``.
    ``memory`` is the store of an engine whose event loop has ended: it lives as long as the
    process. Raises ConfigError, and closes all parts that were opened by then.
    """
    observers = observers.for_engine()
    async with AsyncExitStack() as stack:
        supervisor = Supervisor()
        stack.push_async_callback(supervisor.aclose)
        store = make_store(settings.cache, observers, memory)
        build = BuildContext(settings, store, observers, supervisor, stack)
        encoder = await open_encoder(build)
        domains = make_domains(build)
        policy = make_policy(settings.cache, domains)
        cache = await open_cache(build, encoder, policy)
        tracing = await open_telemetry(build)
        providers = (
            None if wrapped else await _open_providers(build, states, tracing, make_upstream)
        )
        opened = () if providers is None else providers.opened
        second = make_second_opinion(build, opened)
        hit_decider = await open_hit_decider(build, domains, encoder, policy.version, second)
        _open_logs_and_books(build, opened, tracing)
        learning = "" if encoder is None else f"{encoder.namespace} {policy.version}"
        parts = _make_parts(build, cache, encoder, hit_decider, providers, learning)
        engine, services = await _open_engine(
            build, parts, providers, resolve=resolve, origins=origins, exchange=exchange
        )
        if on_start is not None:
            on_start(parts)
        memory = cast("MemoryStore", store) if settings.cache.store == "memory:" else None
        return StartedEngine(engine, stack.pop_all().aclose, tracing, *services, memory=memory)
    # For type checkers, which think that the stack may swallow an error.
    raise AssertionError("unreachable")


class _Providers(NamedTuple):
    """The parts that call providers. Where a wrapped app answers, there are none."""

    states: UpstreamStates
    ledger: ClientLedger | None
    opened: tuple[OpenedUpstream, ...]
    router: Router


async def _open_providers(
    build: BuildContext,
    states: UpstreamStates | None,
    tracing: Tracing | None,
    make: Callable[..., HTTPUpstream] | None,
) -> _Providers:
    """Open the upstreams with their states, their router, and the ledger of client limits.

    Raises ConfigError.
    """
    settings, store, spawn = build.settings, build.store, build.supervisor.spawn
    states, ledger = await open_states(build, states), _open_ledger(build)
    nodes = None
    if isinstance(store, SwapStore):
        nodes = NodeLimits(store, await store.secret(), spawn)
        build.stack.callback(nodes.close)
    opened = await open_upstreams(
        settings,
        states,
        build.stack,
        spawn,
        tracing=tracing,
        ledger=ledger,
        make=make,
        nodes=nodes,
    )
    panels: dict[str, JudgePanel] = {}
    router = make_router(settings, opened, await open_shaping(build, opened), panels, states)
    for name, panel in panels.items():
        await persist(build, name, "cascade", saved=panel.saved, load=panel.load)
    return _Providers(states, ledger, opened, router)


async def _open_engine(
    build: BuildContext,
    parts: Parts,
    providers: _Providers | None,
    *,
    resolve: Callable[[Scope], str | None] | None,
    origins: OriginRules | None,
    exchange: Callable[[Store], CallExchange] | None,
) -> tuple[Engine, _Services]:
    """Make the engine from its parts, and open the services beside it. Raises ConfigError."""
    router = None if providers is None else providers.router
    sharing = _sharing_options(build.settings, router, resolve)
    access = AccessControl(sharing.client_keys, origins)
    conversations = None if providers is None else _open_conversations(build)
    calls = Supervisor()
    engine = _make_engine(
        parts,
        calls,
        router,
        sharing,
        access,
        await build.store.secret(),
        recorder=await open_recorder(build),
        conversations=conversations,
        shared=_open_shared_flights(build, exchange, parts.cache),
    )
    follow_secret(build, engine.renew)
    build.stack.push_async_callback(calls.drain, build.settings.server.shutdown_s)
    if providers is None:
        return engine, _Services()
    services = await _open_services(
        build,
        parts,
        providers,
        engine,
        access=access,
        sockets=_make_sockets(parts, providers, sharing, origins),
        conversations=conversations,
    )
    return engine, services


def _open_logs_and_books(
    build: BuildContext, opened: tuple[OpenedUpstream, ...], tracing: Tracing | None
) -> None:
    """Add the observers that write the logs and the books."""
    observers, access_log = build.observers, build.settings.server.access_log
    observers.add(FailureLog(unpriced=UnpricedModels(billing_names(opened))))
    if access_log != "off":
        trace_id = None if tracing is None else tracing.trace_id
        observers.add(AccessLog(as_json=access_log == "json", trace_id=trace_id))
    books = Bookkeeper(build.store, observers)
    observers.add(books)
    build.supervisor.spawn(books.run)
    build.stack.push_async_callback(books.flush)


def _make_parts(
    build: BuildContext,
    cache: SemanticCache | None,
    encoder: EncoderWorker | None,
    hit_decider: HitDecider | None,
    providers: _Providers | None,
    learning: str,
) -> Parts:
    server = build.settings.server
    return Parts(
        settings=build.settings,
        observers=build.observers,
        cache=cache,
        store=build.store,
        encoder=encoder,
        flights=Flights(),
        concurrency=ConcurrencyLimit(server.max_concurrency, server.max_queue),
        # Relayed calls have their own limit, so that slow ones do not delay chat requests.
        relays=ConcurrencyLimit(server.max_relays, server.max_queue, "server.max_relays"),
        sockets=ConcurrencyLimit(server.max_websockets, 0, "server.max_websockets"),
        supervisor=build.supervisor,
        hit_decider=hit_decider,
        states=None if providers is None else providers.states,
        ledger=None if providers is None else providers.ledger,
        learning=learning,
        machines=machines_of(build.settings),
    )


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


def _make_engine(
    parts: Parts,
    calls: Supervisor,
    router: Router | None,
    sharing: SharingOptions,
    access: AccessControl,
    secret: bytes,
    *,
    recorder: Recorder | None,
    conversations: Conversations | None,
    shared: SharedFlights | None,
) -> Engine:
    settings, cache, wrapped = parts.settings, parts.settings.cache, router is None
    admission = Admission(
        cache.sampled, share_users=cache.share_users or cache.scope != "credential"
    )
    accepted = AcceptedCredentials(time.monotonic)
    return Engine(
        EngineOptions(
            max_body_bytes=settings.server.max_body_bytes,
            # The server of a wrapped app has its own limits.
            body_timeout_s=None if wrapped else settings.server.body_timeout_s,
            deadline_s=settings.server.deadline_s,
            holdout=cache.holdout,
            join_streams=cache.join_streams,
        ),
        access=access,
        finder=_make_finder(parts, admission),
        hit_decider=parts.hit_decider,
        admission=admission,
        preparer=_make_preparer(parts, router, sharing, admission, accepted, secret),
        pump=_make_pump(parts, admission, accepted, sharing, recorder),
        flights=parts.flights,
        responder=Responder(
            RenderedAnswers(cache.hot_bytes // 4),
            parts.supervisor.spawn,
            names_requests=not wrapped,
        ),
        supervisor=parts.supervisor,
        calls=calls,
        observer=parts.observers,
        clock=clock,
        new_id=new_id,
        router=router,
        conversations=conversations,
        ledger=parts.ledger,
        shared=shared,
    )


def _make_pump(
    parts: Parts,
    admission: Admission,
    accepted: AcceptedCredentials,
    sharing: SharingOptions,
    recorder: Recorder | None,
) -> Pump:
    return Pump(
        cache=parts.cache,
        learner=None if parts.hit_decider is None else parts.hit_decider.learner,
        admission=admission,
        accepted=accepted,
        flights=parts.flights,
        concurrency=parts.concurrency,
        clock=clock,
        recorder=recorder,
        observer=parts.observers,
        wrapped=sharing.wrapped,
        keyed=sharing.binds,
    )


def _open_shared_flights(
    build: BuildContext,
    exchange: Callable[[Store], CallExchange] | None,
    cache: SemanticCache | None,
) -> SharedFlights | None:
    """Return the part that joins equal calls of several processes; None for a single process."""
    store = build.store
    if cache is None or not build.settings.cache.join_processes:
        return None
    if isinstance(store, SharedStore):
        found = store.exchange()
    elif exchange is not None:
        found = exchange(store)
    else:
        return None
    shared = SharedFlights(found, build.supervisor.spawn, build.observers, cache.peek_exact)
    build.run(shared.run)
    build.stack.push_async_callback(shared.aclose)
    return shared


def _open_conversations(build: BuildContext) -> Conversations | None:
    """Return the answers that later requests may name by their ids; None: they are not kept."""
    limits, url = build.settings.server.conversations, build.settings.cache.store
    if not limits.enabled:
        return None
    conversations = Conversations(
        limits,
        clock=clock,
        store=None if url.startswith("memory:") else build.store,
        spawn=build.supervisor.spawn,
        observer=build.observers,
        values=ValueLimit(build.settings.server.max_body_values),
    )
    build.stack.push_async_callback(conversations.aclose)
    return conversations


class _Services(NamedTuple):
    """The parts beside the engine that answer requests. With a wrapped app there are none."""

    relay: Relay | None = None
    sockets: WebSocketRelay | None = None
    kept: KeptResponses | None = None
    drafts: LiveDrafts | None = None
    batches: BatchService | None = None


async def _open_services(
    build: BuildContext,
    parts: Parts,
    providers: _Providers,
    engine: Engine,
    *,
    access: AccessControl,
    sockets: WebSocketRelay,
    conversations: Conversations | None,
) -> _Services:
    """Open the services. They close before the engine does. Raises ConfigError."""
    stack = build.stack
    kept = None
    if conversations is not None:
        kept = KeptResponses(
            conversations,
            observer=build.observers,
            clock=clock,
            access=access,
            owner=engine.owner,
            dialect=next(each for each in DIALECTS.values() if each.names_answers),
            new_id=new_id,
        )
    relay = await _open_relay(build, parts, providers, access, kept)
    stack.push_async_callback(sockets.aclose)
    drafts = _make_drafts(parts, engine)
    if drafts is not None:
        stack.push_async_callback(drafts.aclose)
    batches = await _open_batches(parts, engine)
    if batches is not None:
        stack.push_async_callback(batches.aclose)
    return _Services(relay, sockets, kept, drafts, batches)


def _make_drafts(parts: Parts, engine: Engine) -> LiveDrafts | None:
    """Return the live drafts, and give them to the engine; None: they are off."""
    settings = parts.settings
    if not settings.live.enabled:
        return None
    engine.drafts = drafts = LiveDrafts(
        settings.live,
        engine,
        EndpointTable(DIALECTS.values(), ()),
        observer=parts.observers,
        clock=clock,
        new_id=lambda: secrets.token_urlsafe(18),
        sockets=parts.sockets,
        limits=settings.server,
    )
    return drafts


async def _open_batches(parts: Parts, engine: Engine) -> BatchService | None:
    """Return the service for batches of clients; None: they are relayed. Raises ConfigError."""
    settings = parts.settings
    if settings.batches.dir is None:
        return None
    from headstart.middleware.batches.journal import BatchFolder
    from headstart.middleware.batches.service import BatchService

    folder = BatchFolder(Path(settings.batches.dir))
    try:
        await asyncio.to_thread(folder.prepare)
    except OSError as error:
        raise ConfigError(f"batches.dir: {folder.root}: {error.strerror}") from error
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
        spawn=parts.supervisor.spawn,
        clock=clock,
        request_id=new_id,
        body_timeout_s=settings.server.body_timeout_s,
        check=ValueLimit(settings.server.max_body_values).check,
    )
    parts.observers.add(service.books)
    return service


def _make_finder(parts: Parts, admission: Admission) -> Finder | None:
    if parts.cache is None:
        return None
    wait_limit = None
    if parts.encoder is not None and parts.settings.encoder.max_wait_ms is None:
        wait_limit = EncoderWaitLimit()
        parts.observers.add(FirstBytes(wait_limit))
    return Finder(
        parts.cache,
        admission,
        parts.hit_decider,
        clock=clock,
        answered=RecentAnswers(time.monotonic),
        concise=concise_levels(parts.settings),
        wait_limit=wait_limit,
    )


def _make_preparer(
    parts: Parts,
    router: Router | None,
    sharing: SharingOptions,
    admission: Admission,
    accepted: AcceptedCredentials,
    secret: bytes,
) -> Preparer:
    settings, cache, app = parts.settings, parts.settings.cache, AppUpstream.name
    return Preparer(
        sharing,
        admission,
        accepted,
        secret=secret,
        upstreams=(lambda *_: (app, frozenset((app,)))) if router is None else router.upstreams,
        wrapped=router is None,
        observer=parts.observers,
        semantic=cache.mode != "exact-only",
        rules=tuple(map(route_rule, settings.route)),
        never_stored=expressions(cache.never_stored),
        max_error=cache.max_error,
        cached_tools=one_or_more(cache.cached_tools),
        learning=parts.learning,
        lifetimes=lifetimes(cache),
        values=ValueLimit(parts.settings.server.max_body_values),
        templates=cache.templates,
    )


async def _open_relay(
    build: BuildContext,
    parts: Parts,
    providers: _Providers,
    access: AccessControl,
    kept: KeptResponses | None,
) -> Relay:
    """Return the relay, with the lists of models of an earlier run."""
    opened, router = providers.opened, providers.router
    rules = tuple(map(route_rule, parts.settings.route))
    models = ModelLists(
        router,
        rules,
        list_sources(opened, parts.settings),
        spawn=parts.supervisor.spawn,
        clock=clock,
        new_id=new_id,
        observer=parts.observers,
        allows=None if parts.ledger is None else parts.ledger.allows,
        no_lists=all(has_no_list(each.settings) for each in opened),
    )
    await persist(build, "model-lists", "models", saved=models.saved, load=models.load)
    return Relay(
        router,
        rules=rules,
        models=models,
        kept=kept,
        concurrency=parts.relays,
        spawn=parts.supervisor.spawn,
        clock=clock,
        new_id=new_id,
        access=access,
        ledger=parts.ledger,
        limits=parts.settings.server,
        observer=parts.observers,
    )


def _make_sockets(
    parts: Parts,
    providers: _Providers,
    sharing: SharingOptions,
    origins: OriginRules | None,
) -> WebSocketRelay:
    """Return the relay of WebSockets. Nothing is open before the first connection."""
    server = parts.settings.server
    if origins is None and not sharing.client_keys:
        # Browsers let any page open a WebSocket, so the CORS rules of an app around us do not help.
        origins = OriginRules(None, server.allowed_origins)
    return WebSocketRelay(
        socket_upstreams(parts.settings.route, providers.opened, providers.router),
        concurrency=parts.sockets,
        spawn=parts.supervisor.spawn,
        new_id=new_id,
        access=AccessControl(sharing.client_keys, origins),
        ledger=parts.ledger,
        limits=server,
        observer=parts.observers,
        clock=clock,
    )
