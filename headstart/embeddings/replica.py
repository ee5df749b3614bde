"""This process's copies of the store: the hot tier and the vector index.

They follow the store's log, so that what another process stores or deletes reaches them too. Where
a copy is behind, the store decides: an id that it no longer knows is forgotten here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio import to_thread

from headstart.errors import StageError, StoreError, VectorIndexError
from headstart.observe import StageFailed
from headstart.types import VectorRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.decisions import Neighbor
    from headstart.embeddings.hot import HotTier
    from headstart.interfaces import Observer, Store, VectorIndex
    from headstart.types import Entry

T = TypeVar("T")

INLINE_ROWS = 2048
"""Larger partitions are searched and changed in a thread: 2,048 rows take 40 µs, about what the hop
costs."""


class Replica:
    """Keeps the hot tier and the index in step with the store. Large index writes run in threads.

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
        self._writing = 0
        """Index writes in threads now: the loop must not wait for their lock."""

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
                    record = logged.record
                    if isinstance(record, VectorRow) and record.id in self._index:
                        continue  # it was stored by this process
                    # A cancellation here would leave the store's generator to the collector.
                    with anyio.CancelScope(shield=True):
                        if isinstance(record, VectorRow):
                            await self._add([record])
                        else:
                            await self.forget(record.ids)
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
        row = VectorRow(
            id=entry.id, partition=entry.key.group, encoder=entry.encoder, vector=vector
        )
        await self._add([row])

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
            await self._in_thread(partial(self._index.remove, gone))
        return {id: entry for id, entry in entries.items() if entry is not None}

    async def forget(self, ids: Sequence[str]) -> None:
        """Drop entries from both copies."""
        self._deletions += 1
        self._hot.discard(ids)
        if indexed := [id for id in ids if id in self._index]:
            await self._in_thread(partial(self._index.remove, indexed))

    async def _add(self, rows: Sequence[VectorRow]) -> None:
        new = [row for row in rows if row.encoder == self._namespace and row.id not in self._index]
        if not new:
            return
        small = len(new) == 1 and self._index.size(new[0].partition) < INLINE_ROWS
        if small and not self._writing:
            refusal = _add_rows(self._index, new)
        else:
            refusal = await self._in_thread(partial(_add_rows, self._index, new))
        if refusal is not None:
            report(self._observers, refusal)

    async def _in_thread(self, write: Callable[[], T]) -> T:
        self._writing += 1
        try:
            return await to_thread.run_sync(write)
        finally:
            self._writing -= 1


def report(observers: Observer, error: StageError) -> None:
    """Tell observers of a stage that failed, by the name of what was at the bottom of it."""
    cause = error.__cause__ or error
    detail = str(cause) if isinstance(error, StoreError) else ""
    observers.notify(StageFailed(stage=error.stage, error=type(cause).__name__, detail=detail))


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
