"""The store, the encoder and the cache from their settings. Heavy libraries load here."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.factory.clock import clock

if TYPE_CHECKING:
    from headstart.config import CacheSettings
    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.factory.site import Site
    from headstart.interfaces import MatchPolicy, Store
    from headstart.observe import Observers


def make_store(cache: CacheSettings, observers: Observers) -> Store:
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


async def open_encoder(site: Site) -> EncoderWorker | None:
    """Load the encoder, off the loop; None when nothing will ever be matched by meaning."""
    settings = site.settings
    if not settings.cache.enabled or settings.cache.mode == "exact-only":
        return None
    from headstart.embeddings.encoder import OnnxEncoder
    from headstart.embeddings.encoder_worker import EncoderWorker

    chosen = settings.encoder
    path = None if chosen.model == "default" else Path(chosen.model)
    make = partial(OnnxEncoder, path, threads=chosen.threads, max_tokens=chosen.max_tokens)
    worker = EncoderWorker(await asyncio.to_thread(make), observer=site.observers)
    site.stack.push_async_callback(worker.aclose)
    await worker.warm()
    return worker


async def open_cache(
    site: Site, encoder: EncoderWorker | None, policy: MatchPolicy[Any]
) -> SemanticCache | None:
    """Open the store and, if the cache is on, what finds answers in it."""
    settings, store = site.settings, site.store
    if not settings.cache.enabled:
        await store.open()
        site.stack.push_async_callback(store.aclose)
        return None
    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.index import FaissIndex

    cache = SemanticCache(
        store,
        FaissIndex(encoder.dimension if encoder is not None else 1),
        encoder,
        policy,
        hot_bytes=settings.cache.hot_bytes,
        max_wait_s=settings.encoder.max_wait_ms / 1000,
        clock=clock,
        observers=site.observers,
    )
    await cache.open()
    site.stack.push_async_callback(cache.aclose)
    following = site.supervisor.spawn(cache.run)
    site.stack.callback(following.cancel)
    return cache
