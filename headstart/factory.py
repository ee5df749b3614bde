"""The composition root: settings in, running parts out. Heavy libraries load here, not before."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.compression.tokens import warm as warm_tokenizers
from headstart.errors import ConfigError
from headstart.identifiers import new_ulid
from headstart.middleware.asgi import Running
from headstart.middleware.bookkeeper import Bookkeeper
from headstart.middleware.deliver import Deliverer
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.flights import Flights
from headstart.middleware.identity import AcceptedCredentials
from headstart.middleware.limits import Gate
from headstart.middleware.pipeline import Engine, EngineOptions
from headstart.middleware.prepare import Preparer, SharingOptions
from headstart.middleware.pump import Pump
from headstart.middleware.relay import Relay
from headstart.middleware.replay import Replays
from headstart.middleware.supervisor import Supervisor
from headstart.policies.admission import Admission
from headstart.policies.cost import Price

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.config import CacheSettings, Settings, UpstreamSettings
    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.interfaces import Store, Upstream
    from headstart.middleware.asgi_types import Scope
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.observe import Observers
    from headstart.types import ChatRequest, Headers


clock = time.time  # noqa: TID251 - the composition root names the clock, others are given it


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
    supervisor: Supervisor


async def start_engine(
    settings: Settings,
    observers: Observers,
    *,
    wrapped: bool,
    resolve: Callable[[Scope], str | None] | None = None,
    on_start: Callable[[Parts], None] | None = None,
) -> Running:
    """Open store, encoder, index and upstreams, and return a running engine.

    Raises ConfigError; whatever was opened by then is closed again.
    """
    async with AsyncExitStack() as stack:
        supervisor = Supervisor()
        await supervisor.start()
        stack.push_async_callback(supervisor.aclose)
        store = _make_store(settings.cache, observers)
        encoder = await _open_encoder(settings, observers, stack)
        cache = await _open_cache(settings, store, encoder, observers, supervisor, stack)
        books = Bookkeeper(store, supervisor.spawn, observers)
        observers.add(books)
        stack.push_async_callback(books.aclose)
        supervisor.spawn(asyncio.to_thread, warm_tokenizers)
        flights = Flights()
        gate = Gate(settings.server.max_concurrency, settings.server.max_queue)
        parts = Parts(settings, observers, cache, store, encoder, flights, gate, supervisor)
        upstreams = [] if wrapped else await _open_upstreams(settings, stack)
        engine, relay = _assemble(parts, upstreams, await store.secret(), resolve, wrapped=wrapped)
        if on_start is not None:
            on_start(parts)
        stack.push_async_callback(engine.drain, settings.server.shutdown_s)
        return Running(engine, relay, stack.pop_all().aclose)
    raise AssertionError("unreachable")  # for type checkers: the stack swallows nothing


def _make_store(cache: CacheSettings, observers: Observers) -> Store:
    from headstart.embeddings.stores.opening import open_store

    return open_store(
        cache.store,
        ttl_s=cache.ttl_s,
        max_entries=cache.max_entries,
        max_bytes=cache.max_bytes,
        on_corrupt=cache.on_corrupt,
        clock=clock,
        observer=observers,
    )


async def _open_encoder(
    settings: Settings, observers: Observers, stack: AsyncExitStack
) -> EncoderWorker | None:
    """Load the encoder, off the loop; None when nothing will ever be matched by meaning."""
    if not settings.cache.enabled or settings.cache.mode == "exact-only":
        return None
    from headstart.embeddings.encoder import OnnxEncoder
    from headstart.embeddings.encoder_worker import EncoderWorker

    chosen = settings.encoder
    path = None if chosen.model == "default" else Path(chosen.model)
    make = partial(OnnxEncoder, path, threads=chosen.threads, max_tokens=chosen.max_tokens)
    worker = EncoderWorker(await asyncio.to_thread(make), observer=observers)
    stack.push_async_callback(worker.aclose)
    await worker.warm()
    return worker


async def _open_cache(
    settings: Settings,
    store: Store,
    encoder: EncoderWorker | None,
    observers: Observers,
    supervisor: Supervisor,
    stack: AsyncExitStack,
) -> SemanticCache | None:
    """Open the store and, if the cache is on, what finds answers in it."""
    if not settings.cache.enabled:
        await store.open()
        stack.push_async_callback(store.aclose)
        return None
    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.index import FaissIndex
    from headstart.policies.match import StaticMatch

    cache = SemanticCache(
        store,
        FaissIndex(encoder.dimension if encoder is not None else 1),
        encoder,
        StaticMatch(settings.cache.threshold, settings.cache.guards),
        hot_bytes=settings.cache.hot_bytes,
        max_wait_s=settings.encoder.max_wait_ms / 1000,
        clock=clock,
        observers=observers,
    )
    await cache.open()
    stack.push_async_callback(cache.aclose)
    following = supervisor.spawn(cache.run)
    stack.callback(following.cancel)
    return cache


async def _open_upstreams(settings: Settings, stack: AsyncExitStack) -> list[HTTPUpstream]:
    from headstart.middleware.upstreams.http import (
        HTTPOptions,
        HTTPUpstream,
    )

    if not settings.upstream:
        raise ConfigError(
            "no upstream: add an [[upstream]] with base_url, pass --upstream URL, "
            "or set a provider's key such as OPENAI_API_KEY"
        )
    opened = []
    for chosen in settings.upstream:
        options = HTTPOptions(
            name=chosen.name,
            base_url=chosen.base_url,
            credential=_credential(chosen, settings),
            headers=chosen.headers,
            models=chosen.models,
            include_usage=chosen.include_usage,
            connect_s=chosen.connect_s,
            first_token_s=chosen.first_token_s,
            read_s=chosen.read_s,
            proxy=chosen.proxy,
            ca_file=chosen.ca_file,
        )
        upstream = HTTPUpstream(options, dialects())
        stack.push_async_callback(upstream.aclose)
        opened.append(upstream)
    return opened


def _credential(upstream: UpstreamSettings, settings: Settings) -> Headers | None:
    """The upstream's own key; without one, callers' keys pass unless they are ``client_keys``."""
    if upstream.api_key_env is None:
        return () if settings.server.client_keys else None
    key = os.environ.get(upstream.api_key_env)
    if not key:
        raise ConfigError(
            f"upstream {upstream.name!r}: the variable {upstream.api_key_env} "
            "(upstream.api_key_env) is not set"
        )
    return ((b"authorization", b"Bearer " + key.encode()),)


def _assemble(
    parts: Parts,
    upstreams: Sequence[HTTPUpstream],
    secret: bytes,
    resolve: Callable[[Scope], str | None] | None,
    *,
    wrapped: bool,
) -> tuple[Engine, Relay | None]:
    settings, cache = parts.settings, parts.settings.cache
    admission = Admission(cache.sampled, share_users=cache.share_users)
    accepted = AcceptedCredentials(time.monotonic)
    new_id = partial(new_ulid, clock)
    sharing = SharingOptions(
        scope=cache.scope,
        share_users=cache.share_users,
        anonymous=not wrapped and settings.server.is_loopback,
        cookies=wrapped,
        resolve=resolve,
        client_keys=() if wrapped else tuple(key.encode() for key in settings.server.client_keys),
        trusted_proxies=settings.server.trusted_proxies,
        key_headers=tuple(name.lower().encode() for name in cache.key_headers),
    )
    pump = Pump(
        cache=parts.cache,
        admission=admission,
        accepted=accepted,
        flights=parts.flights,
        gate=parts.gate,
        prices=_prices(settings),
        clock=clock,
        ttl_s=cache.ttl_s,
        key_headers=sharing.key_headers,
    )
    engine = Engine(
        EngineOptions(
            max_body_bytes=settings.server.max_body_bytes,
            deadline_s=settings.server.deadline_s,
            semantic=cache.mode == "serve",
            holdout=cache.holdout,
        ),
        cache=parts.cache,
        admission=admission,
        preparer=Preparer(
            sharing,
            admission,
            accepted,
            secret=secret,
            upstream=partial(_identity_of, () if wrapped else settings.upstream),
            wrapped=wrapped,
        ),
        pump=pump,
        flights=parts.flights,
        deliverer=Deliverer(Replays(cache.hot_bytes // 4), parts.supervisor.spawn),
        supervisor=parts.supervisor,
        observer=parts.observers,
        clock=clock,
        new_id=new_id,
        upstream_for=None
        if wrapped
        else partial(_pick, tuple(zip(settings.upstream, upstreams, strict=True))),
    )
    if wrapped:
        return engine, None
    relay = Relay(
        upstreams[0],
        gate=parts.gate,
        spawn=parts.supervisor.spawn,
        new_id=new_id,
        client_keys=sharing.client_keys,
    )
    return engine, relay


def _identity_of(upstreams: Sequence[UpstreamSettings], request: ChatRequest) -> str:
    """Name who would answer: another provider, or another model behind an alias, is another key."""
    if not upstreams:
        return "app"
    chosen = next((each for each in upstreams if request.model in each.models), upstreams[0])
    model = chosen.models.get(request.model, request.model)
    return f"{chosen.name} {chosen.base_url} {model}"


def _pick(
    table: Sequence[tuple[UpstreamSettings, HTTPUpstream]], request: ChatRequest | None
) -> Upstream:
    """The first upstream that names the model, else the first of all."""
    if request is not None:
        for chosen, upstream in table:
            if request.model in chosen.models:
                return upstream
    return table[0][1]


def _prices(settings: Settings) -> Callable[[str, str], Price | None]:
    """Return the price book by (upstream, model); ``default`` prices an upstream's other models."""
    book = {
        (upstream.name, model): Price(
            input_per_million=price.input_per_million, output_per_million=price.output_per_million
        )
        for upstream in settings.upstream
        for model, price in upstream.price.items()
    }
    return lambda upstream, model: book.get((upstream, model)) or book.get((upstream, "default"))


def dialects() -> dict[str, Dialect]:
    """Return the wire formats by name."""
    chat = OpenAIChat()
    return {chat.name: chat}
