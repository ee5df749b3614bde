"""This process's copies of the store: the hot tier of recent entries, and the vector index.

Both follow the store's log, so they also get the changes of other processes, a little later. If a
copy has an id that the store no longer has, the id is removed from the copy.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import anyio
import msgspec
from anyio import to_thread

from headstart.embeddings.index import LEAST_SIGNED
from headstart.errors import StageError, StoreError, VectorIndexError
from headstart.observe import Observer, StageFailed
from headstart.types import UNDECODABLE, Delete, Entry, T, VectorRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headstart.decisions import Neighbor
    from headstart.interfaces import Store, VectorIndex

K = TypeVar("K")

ENTRY_OVERHEAD = 500
"""The bytes of an entry's keys and table rows, in addition to its encoded length."""
DECODED = 256
"""The number of entries that are also kept as objects. Decoding an entry takes about 4 µs."""
LONGEST_DECODED = 64 * 1024
"""A longer encoded entry, in bytes, is not also kept as an object: that would double its memory."""
INLINE_ROWS = 8192
"""Larger partitions are searched in a thread, because they would stop the event loop for longer
than 0.2 ms. A switch to a thread and back costs 0.05 to 0.1 ms."""
INLINE_SKETCHES = 16_384
"""In larger partitions the nearest sketch is searched in a thread. Among this many it is found in
0.08 ms."""
INLINE_SIGNS = 65_536
"""In larger partitions a sketch that is near is searched in a thread. Among this many it takes 0.05
ms, because their signs are compared first, and 0.5 ms if most of them have similar signs."""


# --- the hot tier ---------------------------------------------------------------------------------


class HotEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry in MessagePack, and those of its fields that are needed without decoding it."""

    exact: str
    value: bytes
    created: float
    expires: float | None


class HotTier:
    """Entries in memory, by id and by exact key. The least recently used entry leaves first.

    An entry is kept encoded, which takes half of the memory of its objects. The last ones that came
    or were decoded are kept as objects, too. ``max_bytes`` bounds an estimate, which is accurate to
    about 5 %. An expired entry is never returned; ``clock`` gives Unix seconds. An entry that alone
    exceeds the bound, or that no store could encode, is not kept. Not thread-safe: only the event
    loop uses it.

    While the store's log cannot be read, nobody knows which entries were deleted (``doubt``). Then
    ``find`` returns an entry only within ``outage_ttl_s`` of the failure or of the entry's
    creation, and ``get`` returns no entry.
    """

    def __init__(
        self, max_bytes: int, clock: Callable[[], float], outage_ttl_s: float = 0.0
    ) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._outage_ttl_s = outage_ttl_s
        self._failed_at: float | None = None
        """The time since which the log cannot be read; None: it can."""
        self._by_id: OrderedDict[str, HotEntry] = OrderedDict()
        self._by_exact: dict[str, str] = {}
        self._decoded: OrderedDict[str, Entry] = OrderedDict()
        self.bytes = 0
        """The estimated bytes of all entries here."""
        self._used: set[str] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Entry)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def put(self, entry: Entry) -> bytes | None:
        """Keep an entry as the most recently used; it replaces its id and its exact key.

        Return the encoded entry, or None if it cannot be kept.
        """
        id, exact = entry.id, entry.key.exact
        if self._decoded.get(id) is entry:
            self._by_id.move_to_end(id)
            return self._by_id[id].value
        self.discard((id, self._by_exact.get(exact, id)))
        try:
            # The copy drops the unused end of msgspec's buffer, which may be half of it.
            value = bytes(memoryview(self._encoder.encode(entry)))
        except (OverflowError, RecursionError, TypeError, ValueError):
            return None
        size = len(value) + ENTRY_OVERHEAD
        if size > self._max_bytes:
            return None
        self._by_id[id] = HotEntry(exact, value, entry.created, entry.expires)
        self._by_exact[exact] = id
        self.bytes += size
        if len(value) <= LONGEST_DECODED:
            self._decoded[id] = entry
            if len(self._decoded) > DECODED:
                self._decoded.popitem(last=False)
        while self.bytes > self._max_bytes:
            self.discard((next(iter(self._by_id)),))
        return value

    def find(self, exact: str) -> Entry | None:
        """Return the live entry under an exact key, without any wait, and mark it as used."""
        id = self._by_exact.get(exact)
        if id is None:
            return None
        hot, now = self._by_id[id], self._clock()
        if hot.expires is not None and hot.expires <= now:
            self.discard((id,))
            return None
        if self._failed_at is not None:
            # A time in the future shows that the clock was set back, by an unknown time.
            ages_s = now - self._failed_at, now - hot.created
            if not any(0 <= age_s <= self._outage_ttl_s for age_s in ages_s):
                return None
        self._by_id.move_to_end(id)
        self._used.add(id)
        return self._decoded.get(id) or self._decode(id, hot)

    def limit(self, entry: Entry) -> None:
        """Let an entry expire after ``outage_ttl_s`` or earlier, because the store lacks it.

        A deletion finds entries in the store, so it would miss this entry.
        """
        until = self._clock() + self._outage_ttl_s
        if entry.id in self and (entry.expires is None or entry.expires > until):
            self.put(msgspec.structs.replace(entry, expires=until))

    def doubt(self) -> None:
        """Note that the store's log cannot be read from now on, unless that is known already."""
        if self._failed_at is None:
            self._failed_at = self._clock()

    def confirm(self) -> None:
        """Note that all entries here are known to be in the store."""
        self._failed_at = None

    def mark_used(self, ids: Iterable[str]) -> None:
        """Mark entries as used, which need not be here, until ``take_used``."""
        self._used.update(ids)

    def take_used(self) -> tuple[str, ...]:
        """Return the ids that were marked as used since the last call."""
        used, self._used = self._used, set()
        return tuple(used)

    def get(self, id: str) -> Entry | None:
        """Return the live entry of an id, without marking it as used."""
        hot = self._by_id.get(id)
        if hot is None or self._failed_at is not None:
            return None
        if hot.expires is not None and hot.expires <= self._clock():
            self.discard((id,))
            return None
        return self._decoded.get(id) or self._decode(id, hot)

    def discard(self, ids: Iterable[str]) -> None:
        """Remove ids; unknown ids are ignored."""
        for id in ids:
            hot = self._by_id.pop(id, None)
            if hot is not None:
                del self._by_exact[hot.exact]
                self._decoded.pop(id, None)
                self.bytes -= len(hot.value) + ENTRY_OVERHEAD

    def clear(self) -> None:
        """Remove all entries."""
        self.discard(tuple(self._by_id))

    def _decode(self, id: str, hot: HotEntry) -> Entry | None:
        try:
            entry = self._decoder.decode(hot.value)
        except UNDECODABLE:
            self.discard((id,))
            return None
        if len(hot.value) <= LONGEST_DECODED:
            self._decoded[id] = entry
            if len(self._decoded) > DECODED:
                self._decoded.popitem(last=False)
        return entry


# --- the replica ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Replica:
    """Keeps the hot tier and the index in step with the store. Large index writes run in threads.

    Without a table of sketches the index holds the vectors of the encoder ``namespace``; None: no
    vector is indexed. With a table it holds sketches, and ``vectors`` has the vectors that were
    made so far. When the log is lost or cannot be read, the hot tier doubts its entries. The
    replica then empties it and reads all rows of the store again, every ``retry_s`` until the store
    answers. So no deletion of that time is missed.
    """

    store: Store
    index: VectorIndex
    hot: HotTier
    namespace: str | None
    observers: Observer
    table: str | None = None
    """The namespace of the sketches in the index."""
    retry_s: float = 1.0
    deletions: int = 0
    """The number of deletions so far. If it has grown since an entry was read from the store, the
    entry may be deleted by now."""
    listener: Callable[[Sequence[str] | None], None] = lambda _: None
    """Gets the ids of entries that were deleted; None: any entry may have been."""
    vectors: dict[str, bytes] = field(default_factory=dict)
    unsketched: dict[str, VectorRow] = field(default_factory=dict)
    """Rows without a sketch of this table, by id: earlier versions wrote them."""
    postponed: dict[str, VectorRow] = field(default_factory=dict)
    """Rows of new entries that join the index when they are encoded."""
    late_work: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when ``EntryEncoder.run`` has something to do."""
    _cursor: str = ""
    _writing: int = 0
    """The number of index writes in threads now. The event loop must not wait for their lock."""
    _searching: int = 0
    """The number of searches in threads now. Each of them holds the lock of its partition, one
    after the other."""

    async def load(self) -> None:
        """Index the rows of the store, and remember the end of its log. Raises StoreError."""
        self._cursor = await self.store.cursor()
        self.deletions += 1
        self.hot.clear()
        self.listener(None)
        self.postponed.clear()
        if self.namespace is not None:
            async for rows in self.store.scan():
                await self.add(rows)
        self.hot.confirm()

    async def follow(self) -> None:
        """Apply the store's log from the place where ``load`` left it, until cancelled."""
        lost = False
        while True:
            try:
                if lost:
                    await self.load()
                async for logged in self.store.follow(self._cursor):
                    record = logged.record
                    if isinstance(record, VectorRow) and self._knows(record):
                        continue  # this process wrote the row itself
                    # A cancellation here would leave the store's generator to the collector.
                    with anyio.CancelScope(shield=True):
                        await self._apply(record)
            except StageError as error:
                report_failure(self.observers, error)
            except Exception as error:  # noqa: BLE001 - without its end, no deletion would be seen
                failure = StoreError("a row of the store's log cannot be read")
                failure.__cause__ = error
                report_failure(self.observers, failure)
            self.hot.doubt()
            lost = True
            await anyio.sleep(self.retry_s)

    async def _apply(self, record: VectorRow | Delete) -> None:
        """Apply a change that another process made."""
        if not isinstance(record, VectorRow):
            return await self.forget(record.ids)
        if record.id in self.index:  # the other process has encoded it
            self.hot.discard((record.id,))
        return await self.add([record])

    def keep(self, entry: Entry, deletions: int) -> None:
        """Put an entry into the hot tier, unless something was deleted since it was read.

        ``deletions`` is the value of the attribute before the entry was read.
        """
        if deletions == self.deletions:
            self.hot.put(entry)

    async def search(
        self, partition: str, vector: bytes, k: int, least: float = -1.0
    ) -> Sequence[Neighbor]:
        """Return up to ``k`` neighbours, perhaps without those below the similarity ``least``.

        Raises VectorIndexError.
        """
        most = INLINE_ROWS
        if k == 1 and self.table is not None:
            most = INLINE_SIGNS if least >= LEAST_SIGNED else INLINE_SKETCHES
        # Up to INLINE_ROWS no thread searches the partition.
        if self.index.size(partition) <= (INLINE_ROWS if self._searching else most):
            return self.index.search(partition, vector, k, least)
        self._searching += 1
        try:
            return await to_thread.run_sync(self.index.search, partition, vector, k, least)
        finally:
            self._searching -= 1

    def has_vector(self, id: str) -> bool:
        """Tell whether the vector of an entry in the index is known."""
        return self.table is None or id in self.vectors

    def amend(self, entry: Entry, vector: bytes, deletions: int) -> None:
        """Take over the vector of an entry that was encoded, and ``keep`` the entry."""
        known = entry.id in self.index or entry.id in self.postponed
        if known and self.table is not None:
            self.vectors[entry.id] = vector
        self.keep(entry, deletions)

    async def read(self, ids: Sequence[str]) -> Mapping[str, Entry]:
        """Return the entries that the store still has, by id. The index forgets the others.

        Raises StoreError.
        """
        entries = dict(zip(ids, await self.store.load(ids), strict=True))
        if gone := [id for id, entry in entries.items() if entry is None]:
            await self._remove(gone)
        return {id: entry for id, entry in entries.items() if entry is not None}

    async def forget(self, ids: Sequence[str]) -> None:
        """Remove entries from the hot tier and the index."""
        self.deletions += 1
        self.hot.discard(ids)
        self.listener(ids)
        await self._remove(ids)

    async def add(self, rows: Sequence[VectorRow]) -> None:
        """Index rows. A row that the index refuses is reported."""
        new: list[IndexRow] = []
        for row in rows:
            vector = row.vector if row.encoder == self.namespace else None
            if self.table is not None and vector is not None:
                self.vectors[row.id] = vector
            if row.id in self.index:
                continue
            if self.table is not None:
                vector = row.sketch.row if row.sketch and row.sketch.table == self.table else None
                if vector is None:
                    self.unsketched[row.id] = row
                    self.late_work.set()
            if vector is not None:
                new.append(IndexRow(row.partitions, row.id, vector))
        if not new:
            return
        waits = self._writing or self._searching
        if len(new) == 1 and not waits and self.index.has_room(new[0].partitions):
            refusal = _add_rows(self.index, new)
        else:
            refusal = await self._in_thread(partial(_add_rows, self.index, new))
        if refusal is not None:
            report_failure(self.observers, refusal)

    async def index_postponed(self, ids: Sequence[str]) -> None:
        """Index entries that were postponed; the other ids are ignored."""
        rows = [self.postponed.pop(id) for id in ids if id in self.postponed]
        if rows:
            await self.add(rows)

    def _knows(self, row: VectorRow) -> bool:
        """Tell whether a row of the log says nothing new."""
        vector = self.table is not None and row.vector is not None
        usable = vector and row.encoder == self.namespace
        known = row.id in self.index or row.id in self.postponed
        return known and (not usable or row.id in self.vectors)

    async def _remove(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.vectors.pop(id, None)
            self.postponed.pop(id, None)
        if indexed := [id for id in ids if id in self.index]:
            await self._in_thread(partial(self.index.remove, indexed))

    async def _in_thread(self, write: Callable[[], T]) -> T:
        self._writing += 1
        try:
            return await to_thread.run_sync(write)
        finally:
            self._writing -= 1


class IndexRow(NamedTuple):
    """An entry's row in the index: a vector, or a sketch."""

    partitions: tuple[str, ...]
    id: str
    row: bytes


def report_failure(observers: Observer, error: StageError) -> None:
    """Tell observers about a failed stage, by the class of the original exception."""
    observers.notify(StageFailed.of(error.stage, error))


def _add_rows(index: VectorIndex, rows: Sequence[IndexRow]) -> VectorIndexError | None:
    """Add rows that the index lacks. Returns the first refusal; the other rows are added."""
    refusal = None
    for partitions, id, row in rows:
        if id in index:
            continue
        try:
            index.add(partitions, id, row)
        except VectorIndexError as error:
            refusal = refusal or error
    return refusal
