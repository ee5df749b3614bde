"""The semantic cache: exact and similar prompts to stored answers, over injected parts.

Every optional stage fails open: its error costs a request the cache and is told to observers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from headstart.decisions import Terms
from headstart.embeddings.hot import HotTier
from headstart.embeddings.index import pack_vector
from headstart.embeddings.replica import Replica, report
from headstart.embeddings.similar import SimilarEntries, miss
from headstart.errors import StageError
from headstart.types import Delete, Frozen, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.decisions import Lookup
    from headstart.embeddings.similar import Accept, PromptEncoder
    from headstart.interfaces import MatchPolicy, Observer, Store, VectorIndex
    from headstart.types import CacheKey, Entry

ANY_TERMS = Terms()


class CacheStats(Frozen):
    """``entries`` and ``bytes`` are the store's, the rest is this process's."""

    entries: int
    bytes: int
    partitions: int
    vectors: int
    hot_entries: int
    hot_bytes: int


class SemanticCache:
    """Finds and keeps answers. ``open`` it, ``run`` it in a background task, then use it.

    Of the errors of stages only those of ``open``, ``invalidate`` and ``stats`` are raised.
    Cancelling any method is safe: at worst an entry is stored and not yet indexed here.
    """

    def __init__(
        self,
        store: Store,
        index: VectorIndex,
        encoder: PromptEncoder | None,
        policy: MatchPolicy[Any],
        *,
        hot_bytes: int,
        max_wait_s: float,
        clock: Callable[[], float],
        observers: Observer,
        neighbors: int = 8,
        touch_s: float = 1.0,
    ) -> None:
        """Compose the parts. A lookup waits at most ``max_wait_s`` for its encoding.

        ``clock`` gives Unix seconds; the store hears of used entries every ``touch_s``.
        """
        self._store = store
        self._index = index
        self._encoder = encoder
        self._policy = policy
        self._observers = observers
        self._touch_s = touch_s
        self._touched: set[str] = set()
        self._hot = HotTier(hot_bytes, clock)
        namespace = None if encoder is None else encoder.namespace
        self._replica = Replica(store, index, self._hot, namespace, observers=observers)
        self._similar: SimilarEntries[Any] | None = None
        if encoder is not None:
            self._similar = SimilarEntries(
                encoder,
                policy,
                self._replica,
                self._hot,
                max_wait_s=max_wait_s,
                neighbors=neighbors,
                observers=observers,
            )

    # --- lifetime ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store and rebuild the index from it. Raises ConfigError or StoreError."""
        await self._store.open()
        try:
            await self._replica.load()
        except BaseException:
            await self._store.aclose()
            raise

    async def run(self) -> None:
        """Follow the store's log and tell it which entries were used, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._replica.follow)
            tasks.start_soon(self._touch_regularly)

    async def aclose(self) -> None:
        """Tell the store what was used last and close it. Cancel ``run`` first."""
        await self._flush_touched()
        await self._store.aclose()

    # --- requests ------------------------------------------------------------------------------

    def peek_exact(self, exact: str) -> Entry | None:
        """Return the entry under an exact key if it is in the hot tier, without any wait."""
        entry = self._hot.find(exact)
        if entry is not None:
            self._touched.add(entry.id)
        return entry

    async def find_exact(self, key: CacheKey, accept: Accept) -> Entry | None:
        """Return the store's acceptable entry under the exact key, or None. Nothing is encoded.

        Ask ``peek_exact`` first: it needs no wait.
        """
        deletions = self._replica.deletions
        try:
            entry = await self._store.find(key.exact)
        except StageError as error:
            report(self._observers, error)
            return None
        if entry is None:
            return None
        self._replica.keep(entry, deletions)
        if accept(entry) is not None:
            return None
        self._touched.add(entry.id)
        return entry

    async def find_semantic(
        self, key: CacheKey, accept: Accept, terms: Terms = ANY_TERMS
    ) -> Lookup:
        """Return the nearest entry that ``accept`` and the policy let pass, or why none does.

        A lookup that finds none waits for the entries of its partition that are still to be
        encoded, no longer than it may wait for its own encoding.
        """
        if self._similar is None or key.query is None:
            return miss("exact-only")
        if not self._index.size(key.group) and not self._similar.expects(key.group):
            return miss("empty-partition")
        lookup = await self._similar.find(key, accept, terms)
        if lookup.entry is not None:
            self._touched.add(lookup.entry.id)
        return lookup

    def keep(self, entry: Entry) -> bool:
        """Let exact lookups of this process find an entry from now on; ``put`` stores it.

        Returns whether memory holds it.
        """
        self._hot.put(entry)
        return entry.id in self._hot

    async def put(self, entry: Entry, text: str | None = None, *, tenant: str = "") -> bool:
        """Keep an entry, comparable by ``text`` if given. Exact lookups see it before any wait.

        Returns whether the store acknowledged it; a failure is reported. Without an encoding,
        which ``tenant`` takes its turn for, it is stored all the same, for exact lookups alone.
        """
        self._hot.put(entry)
        if text is None or self._similar is None:
            return await self._put(entry, None, tenant)
        with self._similar.expecting(entry.key.group):
            return await self._put(entry, text, tenant)

    async def _put(self, entry: Entry, text: str | None, tenant: str) -> bool:
        await asyncio.sleep(0)  # whoever waits for this answer gets it before the store does
        entry, vector = await self._embed(entry, text, tenant)
        if vector is not None and entry.id in self._hot:
            self._hot.put(entry)
        try:
            await self._store.append([Put(entry=entry, vector=vector)])
        except StageError as error:
            report(self._observers, error)
            return False
        if vector is not None:
            await self._replica.index(entry, vector)
        return True

    # --- administration ------------------------------------------------------------------------

    async def invalidate(self, ids: Sequence[str]) -> None:
        """Delete entries here and in the store. Raises StoreError: others may serve them still."""
        await self._replica.forget(ids)
        await self._store.append([Delete(ids=tuple(ids))])

    def touch(self, ids: Sequence[str]) -> None:
        """Note that entries were used. Hits are noted by themselves."""
        self._touched.update(ids)

    async def stats(self) -> CacheStats:
        """Count what is kept. Raises StoreError."""
        stored = await self._store.stats()
        return CacheStats(
            entries=stored.entries,
            bytes=stored.bytes,
            partitions=self._index.partitions,
            vectors=self._index.size(),
            hot_entries=len(self._hot),
            hot_bytes=self._hot.bytes,
        )

    async def _embed(
        self, entry: Entry, text: str | None, tenant: str
    ) -> tuple[Entry, bytes | None]:
        encoder, similar = self._encoder, self._similar
        if text is None or encoder is None or similar is None:
            return entry, None
        if encoder.is_full(tenant):
            return entry, None
        try:
            encoding = await encoder.encode(text, background=True, tenant=tenant)
            vector = pack_vector(encoding.sentence)
        except StageError as error:
            report(self._observers, error)
            return entry, None
        if not encoding.complete:
            return entry, None
        embedded = msgspec.structs.replace(
            entry,
            evidence=self._policy.pack(similar.parse(text, encoding)),
            evidence_version=self._policy.version,
            encoder=encoder.namespace,
        )
        return embedded, vector

    async def _touch_regularly(self) -> None:
        while True:
            await anyio.sleep(self._touch_s)
            await self._flush_touched()

    async def _flush_touched(self) -> None:
        touched, self._touched = self._touched, set()
        if not touched:
            return
        try:
            await self._store.touch(tuple(touched))
        except StageError as error:
            report(self._observers, error)
