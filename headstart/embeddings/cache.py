"""The semantic cache: it finds stored answers by exact key and by meaning, and keeps new ones.

Each optional stage fails open: observers get its error, and the request continues without
the cache.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from headstart.decisions import Lookup, MatchContext
from headstart.embeddings.entry_encoder import EntryEncoder, PromptSketcher, RecentEncoder
from headstart.embeddings.replica import HotTier, Replica, report_failure
from headstart.embeddings.semantic_search import SemanticSearch, miss
from headstart.errors import StageError
from headstart.types import CacheKey, Delete, Entry, Frozen, Lease, Put, VectorRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from headstart.embeddings.semantic_search import Refuse
    from headstart.interfaces import MatchPolicy, Store, VectorIndex
    from headstart.observe import Observer

ANY_CONTEXT = MatchContext()
PUTS = 256
"""The largest number of entries that are stored in one commit, so that no commit takes long."""


FindExact: TypeAlias = "Callable[[str], Awaitable[Entry | None]]"
"""Returns the store's entry under an exact key. Raises StoreError."""


class CacheStats(Frozen):
    """``entries`` and ``bytes`` count the store, the other fields count this process."""

    entries: int
    bytes: int
    partitions: int
    vectors: int


class SemanticCache:
    """Finds and keeps answers. Call ``open``, then ``run`` in a background task, then use it.

    Only ``open``, ``invalidate`` and ``stats`` raise StoreError; failures of other methods are
    reported to observers. Each method may be cancelled. In the worst case an entry is then in the
    store and not yet in this process's index.
    """

    def __init__(
        self,
        store: Store,
        index: VectorIndex,
        encoder: RecentEncoder | None,
        policy: MatchPolicy[Any],
        *,
        sketcher: PromptSketcher | None = None,
        hot_bytes: int,
        outage_ttl_s: float,
        max_wait_s: float,
        clock: Callable[[], float],
        observers: Observer,
        touch_s: float = 1.0,
    ) -> None:
        """Compose the parts.

        Without an ``encoder`` there are only exact lookups. With a ``sketcher`` the index holds
        sketches, otherwise vectors of the encoder. A lookup waits at most ``max_wait_s`` for its
        encodings. ``clock`` returns Unix seconds. Every ``touch_s`` seconds the store is told which
        entries were used. If the store does not answer, exact lookups find entries in memory for
        ``outage_ttl_s`` more. ``hot_bytes`` is the size of this memory.
        """
        self._store = store
        self._index = index
        self._observers = observers
        self._touch_s = touch_s
        self._hot = HotTier(hot_bytes, clock, outage_ttl_s)
        self.peek_exact: Callable[[str], Entry | None] = self._hot.find
        """Returns the hot tier's entry under an exact key, without any wait."""
        self.touch: Callable[[Iterable[str]], None] = self._hot.mark_used
        """Notes that entries were used. Lookups note their hits themselves."""
        self.hit_share: Callable[[MatchContext], float] = policy.hit_share
        """Returns the share of a domain's encoded questions that were hits lately, from 0 to 1."""
        namespace = None if encoder is None else encoder.namespace
        table = None if sketcher is None else sketcher.namespace
        self._replica = Replica(store, index, self._hot, namespace, observers, table)
        self._entries: EntryEncoder[Any] | None = None
        self._search: SemanticSearch[Any] | None = None
        if encoder is not None:
            self._entries = EntryEncoder(encoder, sketcher, policy, self._replica)
            self._search = SemanticSearch(encoder, self._entries, policy, self._replica, max_wait_s)

    # --- lifetime ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store and fill the index from it. Raises ConfigError or StoreError."""
        await self._store.open()
        try:
            await self._replica.load()
        except BaseException:
            await self._store.aclose()
            raise

    async def run(self) -> None:
        """Follow the store's log, encode entries in idle time, tell the store what was used."""
        async with anyio.create_task_group() as tasks:
            if self._entries is not None:
                tasks.start_soon(self._entries.run)
            tasks.start_soon(self._replica.follow)
            tasks.start_soon(self._touch_regularly)

    async def aclose(self) -> None:
        """Write what is still to be written, and close the store. Cancel ``run`` first."""
        if self._entries is not None:
            await self._entries.flush()
        await self._flush_used()
        await self._store.aclose()

    # --- requests ------------------------------------------------------------------------------

    async def find_exact(
        self, key: CacheKey, refuse: Refuse, search_store: FindExact | None = None
    ) -> Entry | None:
        """Return the store's entry under the exact key, unless ``refuse`` has a reason against it.

        Call ``peek_exact`` first, which does not wait. ``search_store`` replaces ``Store.find``. A
        failure of the store is reported and gives None.
        """
        deletions = self._replica.deletions
        try:
            entry = await (search_store or self._store.find)(key.exact)
        except StageError as error:
            report_failure(self._observers, error)
            return None
        if entry is None:
            return None
        self._replica.keep(entry, deletions)
        if refuse(entry) is not None:
            return None
        self.touch((entry.id,))
        return entry

    async def find_each(self, exacts: Sequence[str]) -> list[Entry | None]:
        """Return the entry under each exact key, from memory or else from the store; None: none."""
        found = list(map(self.peek_exact, exacts))
        places = [place for place, entry in enumerate(found) if entry is None]
        if not places:
            return found
        deletions = self._replica.deletions

        async def find(place: int) -> None:
            try:
                entry = await self._store.find(exacts[place])
            except StageError as error:
                return report_failure(self._observers, error)
            if entry is not None:
                self._replica.keep(entry, deletions)
                self.touch((entry.id,))
                found[place] = entry

        # All at once: a store answers many questions in parallel.
        async with anyio.create_task_group() as tasks:
            for place in places:
                tasks.start_soon(find, place)
        return found

    async def find_semantic(
        self,
        key: CacheKey,
        refuse: Refuse,
        context: MatchContext = ANY_CONTEXT,
        max_wait: Callable[[], float] | None = None,
    ) -> Lookup:
        """Return the nearest entry that ``refuse`` and the policy allow, or a miss.

        If there is none, and entries near the question are on their way into the index, the lookup
        waits for them, ``max_wait_s`` at most, and searches again. ``max_wait`` returns how many
        seconds the lookup may wait for the question's encoding; None: ``max_wait_s``, too.
        """
        if self._search is None or key.query is None:
            return miss("exact-only")
        lookup = await self._search.find(key, refuse, context, max_wait)
        if lookup.entry is not None:
            self.touch((lookup.entry.id,))
        return lookup

    def keep(self, entry: Entry) -> bool:
        """Let exact lookups of this process find an entry from now on; ``put`` stores it.

        Returns whether memory holds it.
        """
        return self._hot.put(entry) is not None

    def expect(self, key: CacheKey, tenant: str) -> Callable[[], None]:
        """Let lookups by meaning wait for an entry that is about to be stored.

        Call this method before ``put``, and call the function that it returns after ``put``: from
        then on no lookup waits. A lookup waits at most ``max_wait_s``.
        """
        if self._search is None:
            return lambda: None  # no lookup waits
        return self._search.expect(key, tenant)

    async def put(
        self,
        entry: Entry,
        text: str | None = None,
        *,
        tenant: str = "",
        lease: Lease | None = None,
    ) -> bool:
        """Store an entry and index it under the meaning of ``text``. Exact lookups see it at once.

        Returns whether the store wrote it. A failure is reported; memory then holds the entry for
        ``outage_ttl_s``. If the text must be encoded, the encoding takes its turn among those of
        ``tenant``. An entry without a sketch or an encoding serves exact lookups only. ``lease`` is
        that of the call, if other processes could follow it.
        """
        value = self._hot.put(entry)
        await asyncio.sleep(0)  # let waiting clients get the answer before the store does
        vector, sketch, postponed = None, None, False
        if self._entries is not None and text is not None:
            entry, vector, sketch, postponed = await self._entries.embed(entry, text, tenant)
            if vector is not None:
                value = self._hot.put(entry) if entry.id in self._hot else None
        put = Put(entry=entry, vector=vector, sketch=sketch, lease=lease, value=value)
        try:
            await self._store.append([put])
        except StageError as error:
            report_failure(self._observers, error)
            self._hot.limit(entry)
            return False
        if vector is None and sketch is None:
            return True
        row = VectorRow(
            id=entry.id,
            partitions=entry.key.partitions,
            encoder=entry.encoder,
            vector=vector,
            sketch=sketch,
        )
        if postponed and self._entries is not None:
            self._entries.postpone(row, tenant)
        else:
            await self._replica.add([row])
        return True

    async def put_each(self, entries: Sequence[Entry]) -> None:
        """Store entries that serve exact lookups only. A failure is reported."""
        try:
            for start in range(0, len(entries), PUTS):
                await self._store.append(
                    [Put(entry=entry) for entry in entries[start : start + PUTS]]
                )
        except StageError as error:
            report_failure(self._observers, error)

    # --- administration ------------------------------------------------------------------------

    async def invalidate(self, ids: Sequence[str]) -> None:
        """Delete entries here and in the store.

        Raises StoreError: then other processes may still serve them.
        """
        await self._replica.forget(ids)
        await self._store.append([Delete(ids=tuple(ids))])

    def when_deleted(self, listener: Callable[[Sequence[str] | None], None]) -> None:
        """Call ``listener`` with the ids of entries that are deleted, here or by another process.

        None: the store's log was lost, so any entry may have been deleted.
        """
        self._replica.listener = listener

    async def stats(self) -> CacheStats:
        """Count entries, vectors and bytes. Raises StoreError."""
        stored = await self._store.stats()
        return CacheStats(
            entries=stored.entries,
            bytes=stored.bytes,
            partitions=self._index.partitions,
            vectors=self._index.size(),
        )

    async def _touch_regularly(self) -> None:
        while True:
            await anyio.sleep(self._touch_s)
            await self._flush_used()

    async def _flush_used(self) -> None:
        used = self._hot.take_used()
        if not used:
            return
        try:
            await self._store.touch(used)
        except StageError as error:
            report_failure(self._observers, error)
