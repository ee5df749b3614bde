"""A semantic cache over fakes, and the ways in which tests use one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from headstart.embeddings.cache import SemanticCache
from headstart.embeddings.index import FaissIndex
from headstart.observe import StageFailed
from headstart.types import CacheKey, Entry
from support.fakes import (
    DIMENSION,
    SKETCH_DIMENSION,
    FakeEncoder,
    FakeMatchPolicy,
    FakeSketcher,
    FaultyStore,
    Recorder,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headstart.interfaces import Store


def make_cache(
    store: Store,
    index: FaissIndex,
    encoder: FakeEncoder | None,
    recorder: Recorder,
    *,
    clock: Callable[[], float] = lambda: 1000.0,
    hot_bytes: int = 1 << 20,
    outage_ttl_s: float = 30.0,
    max_wait_s: float = 60.0,
    touch_s: float = 1.0,
    sketcher: FakeSketcher | None = None,
    policy: FakeMatchPolicy | None = None,
) -> SemanticCache:
    return SemanticCache(
        store,
        index,
        encoder,
        policy or FakeMatchPolicy(),
        sketcher=sketcher,
        hot_bytes=hot_bytes,
        outage_ttl_s=outage_ttl_s,
        max_wait_s=max_wait_s,
        clock=clock,
        observers=recorder,
        touch_s=touch_s,
    )


class CacheRig:
    """A cache and the parts that a test turns."""

    def __init__(
        self,
        store: FaultyStore,
        *,
        hot_bytes: int = 1 << 20,
        outage_ttl_s: float = 30.0,
        max_wait_s: float = 60.0,
        touch_s: float = 1.0,
        sketcher: FakeSketcher | None = None,
    ) -> None:
        self.now = 1000.0
        self.store = store
        self.index = FaissIndex(DIMENSION if sketcher is None else SKETCH_DIMENSION)
        self.encoder = FakeEncoder()
        self.recorder = Recorder()
        self.policy = FakeMatchPolicy()
        self.cache = make_cache(
            store,
            self.index,
            self.encoder,
            self.recorder,
            clock=lambda: self.now,
            hot_bytes=hot_bytes,
            outage_ttl_s=outage_ttl_s,
            max_wait_s=max_wait_s,
            touch_s=touch_s,
            sketcher=sketcher,
            policy=self.policy,
        )

    @property
    def failures(self) -> list[tuple[str, str]]:
        return [
            (seen.stage, seen.error) for seen in self.recorder.seen if isinstance(seen, StageFailed)
        ]


@asynccontextmanager
async def running(cache: SemanticCache) -> AsyncIterator[SemanticCache]:
    await cache.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cache.run)
        yield cache
        tasks.cancel_scope.cancel()
    await cache.aclose()


def key(query: str | None, *, exact: str = "unknown", partition: str = "p") -> CacheKey:
    return CacheKey(scope="s", partition=partition, exact=exact, query=query)


def refuse_none(entry: Entry) -> str | None:
    return None
