"""Builds the store, the encoder, the semantic cache and the record file from settings."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.factory.context import clock
from headstart.middleware.record import Recorder
from headstart.policies.patience import SHORTEST_S

if TYPE_CHECKING:
    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.embeddings.sketch import Sketcher
    from headstart.embeddings.stores.records import StoreCipher
    from headstart.factory.context import BuildContext
    from headstart.interfaces import Encoder, MatchPolicy, Store
    from headstart.observe import Observers
    from headstart.settings import CacheSettings, EncoderSettings


def store_cipher(cache: CacheSettings) -> StoreCipher | None:
    """Return what encrypts the entries of the store; None: nothing. Raises ConfigError."""
    if cache.encryption_key_env is None and cache.encryption_key_command is None:
        return None
    from headstart.embeddings.stores.encryption import cipher_of

    return cipher_of(cache, os.environ)


def make_store(cache: CacheSettings, observers: Observers) -> Store:
    from headstart.embeddings.stores.store_urls import open_store

    return open_store(
        cache.store,
        ttl_s=cache.ttl_s,
        max_entries=cache.max_entries,
        max_bytes=cache.max_bytes,
        on_corrupt=cache.on_corrupt,
        clock=clock,
        observer=observers,
        cipher=store_cipher(cache),
    )


async def open_encoder(build: BuildContext) -> EncoderWorker | None:
    """Load the encoder in a thread; return None where no request is matched by meaning."""
    settings = build.settings
    if not settings.cache.enabled or settings.cache.mode == "exact-only":
        return None
    from headstart.embeddings.encoder_worker import EncoderWorker, spare_threads

    chosen = settings.encoder
    worker = EncoderWorker(
        await asyncio.to_thread(_load_encoder, chosen),
        threads=chosen.threads or spare_threads(),
        observer=build.observers,
    )
    build.stack.push_async_callback(worker.aclose)
    if not chosen.lazy:
        await worker.warm()
    return worker


def _load_encoder(chosen: EncoderSettings) -> Encoder:
    folder = _encoder_folder(chosen)
    if chosen.lazy:
        from headstart.embeddings.encoder import LazyEncoder

        return LazyEncoder(folder, max_tokens=chosen.max_tokens)
    from headstart.embeddings.encoder import OnnxEncoder

    return OnnxEncoder(folder, max_tokens=chosen.max_tokens)


def _encoder_folder(chosen: EncoderSettings) -> Path | None:
    return None if chosen.model == "default" else Path(chosen.model)


def _load_sketcher(chosen: EncoderSettings) -> Sketcher | None:
    from headstart.embeddings.sketch import load_sketcher

    return load_sketcher(_encoder_folder(chosen), max_tokens=chosen.max_tokens)


async def open_cache(
    build: BuildContext, encoder: EncoderWorker | None, policy: MatchPolicy[Any]
) -> SemanticCache | None:
    """Open the store and, if the cache is on, the cache that finds answers in the store."""
    settings, store = build.settings, build.store
    if not settings.cache.enabled:
        await store.open()
        build.stack.push_async_callback(store.aclose)
        return None
    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.index import FaissIndex

    fixed_ms = settings.encoder.max_wait_ms
    sketcher = (
        None if encoder is None else await asyncio.to_thread(_load_sketcher, settings.encoder)
    )
    vectors = sketcher or encoder
    cache = SemanticCache(
        store,
        FaissIndex(1 if vectors is None else vectors.dimension),
        encoder,
        policy,
        sketcher=sketcher,
        hot_bytes=settings.cache.hot_bytes,
        outage_ttl_s=settings.cache.outage_ttl_s,
        max_wait_s=SHORTEST_S if fixed_ms is None else fixed_ms / 1000,
        clock=clock,
        observers=build.observers,
    )
    await cache.open()
    build.stack.push_async_callback(cache.aclose)
    following = build.supervisor.spawn(cache.run)
    build.stack.callback(following.cancel)
    return cache


async def open_recorder(build: BuildContext) -> Recorder | None:
    """Return the writer of the record file, or None if the record is off. Raises ConfigError."""
    record = build.settings.record
    if not record.enabled:
        return None
    recorder = Recorder(
        Path(record.path),
        retention_days=record.retention_days,
        spawn=build.supervisor.spawn,
        clock=clock,
        observer=build.observers,
    )
    await recorder.open()
    build.stack.push_async_callback(recorder.aclose)
    build.supervisor.spawn(recorder.prune)
    return recorder
