"""This process's copies of the store: the hot tier and the vector index.

They follow the store's log, so that what another process stores or deletes reaches them too. Where
a copy is behind, the store decides: an id that it no longer knows is forgotten here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from headstart.errors import StageError, VectorIndexError
from headstart.observe import StageFailed
from headstart.types import Delete, VectorRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headstart.decisions import Neighbor
    from headstart.embeddings.hot import HotTier
    from headstart.interfaces import Observer, Store, VectorIndex
    from headstart.types import Entry, Record

INLINE_ROWS = 2048
"""Larger partitions are searched in a thread: 2,048 rows take 40 µs, about what the hop costs."""


class Replica:
    """Keeps the hot tier and the index in step with the store. Index writes run in threads.

    Only vectors of the encoder ``namespace`` are indexed; None: no vectors at all. When the log
    was lost, the hot tier is emptied and the index filled up from the store, every ``retry_s``
    until the store answers.
    """

    def __init__(
        self,
        store: Store,
        index: VectorIndex,
        hot: HotTier,
        namespace: str | None,
        *,
        observers: Observer,
        retry_s: float = 1.0,
    ) -> None:
        self._store = store
        self._index = index
        self._hot = hot
        self._namespace = namespace
        self._observers = observers
        self._retry_s = retry_s
        self._cursor = ""
        self._deletions = 0

    @property
    def deletions(self) -> int:
        """Grows with every deletion: what was read from the store before may be gone."""
        return self._deletions

    async def load(self) -> None:
        """Index what the store holds, and note where its log stands. Raises StoreError."""
        self._cursor = await self._store.cursor()
        self._deletions += 1
        self._hot.clear()
        if self._namespace is not None:
            async for rows in self._store.scan():
                await self._add(rows)

    async def follow(self) -> None:
        """Apply the store's log from where ``load`` found it, until cancelled."""
        lost = False
        while True:
            try:
                if lost:
                    await self.load()
                async for logged in self._store.follow(self._cursor):
                    # A cancellation here would leave the store's generator to the collector.
                    with anyio.CancelScope(shield=True):
                        await self._apply(logged.record)
            except StageError as error:
                report(self._observers, error)
            lost = True
            await anyio.sleep(self._retry_s)

    def keep(self, entry: Entry, deletions: int) -> None:
        """Hold an entry hot, unless something was deleted since ``deletions`` was read."""
        if deletions == self._deletions:
            self._hot.put(entry)

    async def index(self, entry: Entry, vector: bytes) -> None:
        """Add an entry's vector. A vector that the index refuses is reported."""
        if entry.id not in self._index:
            await self._add(
                [
                    VectorRow(
                        id=entry.id,
                        partition=entry.key.group,
                        encoder=entry.encoder,
                        vector=vector,
                    )
                ]
            )

    async def search(self, partition: str, vector: bytes, k: int) -> Sequence[Neighbor]:
        """Return up to ``k`` neighbours. Raises VectorIndexError."""
        if self._index.size(partition) <= INLINE_ROWS:
            return self._index.search(partition, vector, k)
        return await to_thread.run_sync(self._index.search, partition, vector, k)

    async def read(self, ids: Sequence[str]) -> Mapping[str, Entry]:
        """Return those entries that the store still has; forget the others. Raises StoreError."""
        entries = dict(zip(ids, await self._store.load(ids), strict=True))
        gone = [id for id, entry in entries.items() if entry is None]
        if gone:
            await to_thread.run_sync(self._index.remove, gone)
        return {id: entry for id, entry in entries.items() if entry is not None}

    async def forget(self, ids: Sequence[str]) -> None:
        """Drop entries from both copies."""
        self._deletions += 1
        self._hot.discard(ids)
        await to_thread.run_sync(self._index.remove, ids)

    async def _apply(self, record: Record) -> None:
        if isinstance(record, Delete):
            await self.forget(record.ids)
        elif record.vector is not None:
            await self.index(record.entry, record.vector)

    async def _add(self, rows: Sequence[VectorRow]) -> None:
        ours = [row for row in rows if row.encoder == self._namespace]
        refusal = await to_thread.run_sync(_add_rows, self._index, ours)
        if refusal is not None:
            report(self._observers, refusal)


def report(observers: Observer, error: StageError) -> None:
    """Tell observers of a stage that failed, by the name of what was at the bottom of it."""
    cause = error.__cause__ or error
    observers.notify(StageFailed(stage=error.stage, error=type(cause).__name__))


def _add_rows(index: VectorIndex, rows: Sequence[VectorRow]) -> VectorIndexError | None:
    """Add rows that are not there yet. Returns the first refusal; the other rows are added."""
    refusal = None
    for row in rows:
        if row.id in index:
            continue
        try:
            index.add(row.partition, row.id, row.vector)
        except VectorIndexError as error:
            refusal = refusal or error
    return refusal
