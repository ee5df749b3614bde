"""The composition root: settings in, running parts out. Heavy libraries load here, not before."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headstart.factory.caching import make_store, open_cache, open_encoder
from headstart.factory.clock import clock
from headstart.factory.conditions import open_conditions
from headstart.factory.keeping import follow_secret, keep
from headstart.factory.learning import (
    make_domains,
    make_policy,
    make_second_opinion,
    open_oversight,
)
from headstart.factory.recording import open_recorder
from headstart.factory.routing import lifetimes, route_rule
from headstart.factory.shaping import concise_levels, open_shaping
from headstart.factory.site import Site
from headstart.factory.strategies import make_router
from headstart.factory.upstreams import open_upstreams
from headstart.identifiers import new_ulid
from headstart.middleware.asgi import Running
from headstart.middleware.bookkeeper import Bookkeeper
from headstart.middleware.deliver import Deliverer
from headstart.middleware.failure_log import FailureLog
from headstart.middleware.flights import Flights
from headstart.middleware.identity import AcceptedCredentials, Door, SharingOptions
from headstart.middleware.limits import Gate
from headstart.middleware.lookup import Answered, Finder
from headstart.middleware.pipeline import Engine, EngineOptions
from headstart.middleware.prepare import Preparer
from headstart.middleware.pump import Pump
from headstart.middleware.relay import Relay
from headstart.middleware.replay import Replays
from headstart.middleware.supervisor import Supervisor
from headstart.middleware.upstreams.app import AppReply
from headstart.middleware.upstreams.ledger import Ledger
from headstart.policies.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.config import Settings
    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.factory.upstreams import Opened
    from headstart.interfaces import Store
    from headstart.middleware.asgi_types import Scope
    from headstart.middleware.learning.oversight import Oversight
    from headstart.middleware.record import Recorder
    from headstart.middleware.router import Router
    from headstart.middleware.upstreams.conditions import Conditions
    from headstart.middleware.upstreams.jury import Jury
    from headstart.observe import Observers
    from headstart.policies.origins import OriginRules


@dataclass(frozen=True)
class Parts:
    """What a started engine is made of, for the admin pages and the metrics."""

    settings: Settings
    observers: Observers
    cache: SemanticCache | None
    store: Store
    encoder: EncoderWorker | None
    flights: Flights
    gate: Gate
    relays: Gate
    supervisor: Supervisor
    oversight: Oversight | None
    conditions: Conditions | None
    """What is known of upstreams; None where a wrapped app answers."""
    learning: str
    """Encoder and guards that a learning domain belongs to."""


async def start_engine(
    settings: Settings,
    observers: Observers,
    *,
    wrapped: bool,
    resolve: Callable[[Scope], str | None] | None = None,
    origins: OriginRules | None = None,
    on_start: Callable[[Parts], None] | None = None,
) -> Running:
    """Open store, encoder, index and upstreams, and return a running engine.

    ``origins`` are the rules for requests of web pages. Raises ConfigError; whatever was opened by
    then is closed again.
    """
    async with AsyncExitStack() as stack:
        supervisor = Supervisor()
        stack.push_async_callback(supervisor.aclose)
        store = make_store(settings.cache, observers)
        site = Site(settings, store, observers, supervisor, stack)
        encoder = await open_encoder(site)
        domains = make_domains(site)
        policy = make_policy(settings.cache, domains)
        cache = await open_cache(site, encoder, policy)
        ledger = Ledger()
        opened: tuple[Opened, ...] = ()
        router = conditions = None
        if not wrapped:
            conditions = await open_conditions(site)
            opened = await open_upstreams(settings, conditions, ledger, stack, supervisor.spawn)
            juries: dict[str, Jury] = {}
            shaping = await open_shaping(site, opened, ledger)
            router = make_router(settings, opened, ledger, shaping, juries, conditions.hedges)
            for name, jury in juries.items():
                await keep(site, name, "cascade", saved=jury.saved, load=jury.load)
        second = make_second_opinion(site, opened)
        oversight = open_oversight(site, domains, encoder, policy.version, second)
        books = Bookkeeper(store, supervisor.spawn, observers)
        observers.add(books)
        observers.add(FailureLog())
        stack.push_async_callback(books.aclose)
        recorder = await open_recorder(site)
        flights = Flights()
        server = settings.server
        gate = Gate(server.max_concurrency, server.max_queue)
        # Apart from chat, so that slow calls to other paths leave it its places.
        relays = Gate(server.max_relays, server.max_queue, "server.max_relays")
        learning = "" if encoder is None else f"{encoder.namespace} {policy.version}"
        parts = Parts(
            settings,
            observers,
            cache,
            store,
            encoder,
            flights,
            gate,
            relays,
            supervisor,
            oversight,
            conditions,
            learning,
        )
        secret = await store.secret()
        engine, relay = _assemble(parts, router, ledger, secret, resolve, recorder, origins=origins)
        follow_secret(site, engine.renew)
        if on_start is not None:
            on_start(parts)
        stack.push_async_callback(engine.drain, settings.server.shutdown_s)
        return Running(engine, relay, stack.pop_all().aclose)
    raise AssertionError("unreachable")  # for type checkers: the stack swallows nothing


def _assemble(
    parts: Parts,
    router: Router | None,
    ledger: Ledger,
    secret: bytes,
    resolve: Callable[[Scope], str | None] | None,
    recorder: Recorder | None,
    *,
    origins: OriginRules | None,
) -> tuple[Engine, Relay | None]:
    settings, cache, wrapped = parts.settings, parts.settings.cache, router is None
    admission = Admission(
        cache.sampled, share_users=cache.share_users or cache.scope != "credential"
    )
    accepted = AcceptedCredentials(time.monotonic)
    new_id = partial(new_ulid, clock)
    sharing = SharingOptions(
        scope=cache.scope,
        share_users=cache.share_users,
        anonymous=not wrapped and settings.server.is_loopback,
        wrapped=wrapped,
        resolve=resolve,
        client_keys=() if wrapped else tuple(key.encode() for key in settings.server.client_keys),
        trusted_proxies=settings.server.trusted_proxies,
        key_headers=(
            *(name.lower().encode() for name in cache.key_headers),
            *((b"origin",) if wrapped else ()),  # the app's own CORS answers each in its own way
        ),
        ignore_headers=tuple(name.lower().encode() for name in cache.ignore_headers),
        own_keys=frozenset() if router is None else router.own_keys,
    )
    pump = Pump(
        cache=parts.cache,
        learner=None if parts.oversight is None else parts.oversight.learner,
        admission=admission,
        accepted=accepted,
        flights=parts.flights,
        gate=parts.gate,
        ledger=ledger,
        clock=clock,
        recorder=recorder,
        observer=parts.observers,
        keyed=sharing.binds,
    )
    finder = None
    if parts.cache is not None:
        finder = Finder(
            parts.cache,
            admission,
            parts.oversight,
            clock=clock,
            answered=Answered(time.monotonic),
            concise=concise_levels(settings),
        )
    door = Door(sharing.client_keys, origins)
    engine = Engine(
        EngineOptions(
            max_body_bytes=settings.server.max_body_bytes,
            # An app around us has a server of its own, with its own limits.
            body_timeout_s=None if wrapped else settings.server.body_timeout_s,
            deadline_s=settings.server.deadline_s,
            holdout=cache.holdout,
        ),
        door=door,
        finder=finder,
        oversight=parts.oversight,
        admission=admission,
        preparer=Preparer(
            sharing,
            admission,
            accepted,
            secret=secret,
            upstream=_the_app if router is None else router.identity,
            answerers=_the_app_alone if router is None else router.names,
            wrapped=wrapped,
            observer=parts.observers,
            semantic=cache.mode != "exact-only",
            rules=tuple(map(route_rule, settings.route)),
            max_error=cache.max_error,
            learning=parts.learning,
            lifetimes=lifetimes(cache),
            max_body_values=settings.server.max_body_values,
        ),
        pump=pump,
        flights=parts.flights,
        deliverer=Deliverer(Replays(cache.hot_bytes // 4), parts.supervisor.spawn),
        supervisor=parts.supervisor,
        observer=parts.observers,
        clock=clock,
        new_id=new_id,
        router=router,
    )
    if router is None:
        return engine, None
    relay = Relay(
        router.relay,
        gate=parts.relays,
        spawn=parts.supervisor.spawn,
        new_id=new_id,
        door=door,
        deadline_s=settings.server.deadline_s,
        body_timeout_s=settings.server.body_timeout_s,
        observer=parts.observers,
        paths=settings.server.relay_paths,
    )
    return engine, relay


def _the_app(dialect: str, model: str, rule: str) -> str:  # noqa: ARG001 - it alone
    return AppReply.upstream


def _the_app_alone(dialect: str, model: str, rule: str) -> frozenset[str]:  # noqa: ARG001 - it alone
    return frozenset((AppReply.upstream,))
