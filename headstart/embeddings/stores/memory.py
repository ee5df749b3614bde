"""A store in this process's memory, for tests and for deployments that need nothing kept."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from headstart.embeddings.stores.codec import (
    Limits,
    Sealed,
    decode_served,
    encode_label,
    encode_served,
    open_entry,
    seal,
)
from headstart.embeddings.stores.labels import (
    DOCUMENTS,
    LABEL_ROWS,
    LabelReader,
    row_cursor,
    row_number,
)
from headstart.embeddings.stores.log import (
    AT_ONCE,
    BOOK_ROWS,
    LOG_ROWS,
    LogRow,
    after_cursor,
    follow_log,
    stored_ids,
)
from headstart.observe import Committed, Observers
from headstart.types import Delete, Entry, Logged, Put, Record, StoreStats, VectorRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from headstart.decisions import Label
    from headstart.interfaces import Observer
    from headstart.observe import Served


class MemoryStore:
    """Entries in memory, encoded as a durable store would, so that ``max_bytes`` means the same."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default
        observer: Observer | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._observer = observer or Observers()
        self._entries: dict[str, Sealed] = {}
        self._by_exact: dict[str, str] = {}
        self._used: OrderedDict[str, None] = OrderedDict()
        self._ends: list[tuple[float, str]] = []
        self._bytes = 0
        self._log: deque[LogRow] = deque([LogRow("1", deleted=True, id="")], maxlen=LOG_ROWS)
        self._logged = 1
        self._books: deque[bytes] = deque(maxlen=BOOK_ROWS)
        self._labels: deque[tuple[str, bytes]] = deque()
        self._of_domain: defaultdict[str, deque[int]] = defaultdict(deque)
        self._labelled = 0
        self._label_reader = LabelReader(self._read_labels)
        self._documents: dict[str, bytes] = {}
        self._secret = secrets.token_bytes(32)

    async def open(self) -> None:
        """Nothing to open."""

    async def aclose(self) -> None:
        """Nothing to flush; the entries go with the object."""

    async def find(self, exact: str) -> Entry | None:
        """Return the live entry under an exact key."""
        return self._load(self._by_exact.get(exact, ""))

    async def load(self, ids: Sequence[str]) -> Sequence[Entry | None]:
        """Return entries in the order of ``ids``; None where one is gone."""
        return [self._load(id) for id in ids]

    async def append(self, records: Sequence[Record]) -> str:
        """Store and delete at once. Raises StoreError when an entry cannot be stored."""
        sealed = [
            seal(record.entry, record.vector, self._limits) if isinstance(record, Put) else record
            for record in records
        ]
        self._purge()
        for record in sealed:
            if isinstance(record, Delete):
                self._remove(record.ids)
            else:
                self._store(record)
        self._evict()
        for record in sealed:
            if isinstance(record, Sealed):
                self._observer.notify(Committed(id=record.id, bytes=record.size))
        return self._log[-1].cursor

    async def cursor(self) -> str:
        """Return the log's end."""
        return self._log[-1].cursor

    async def follow(self, after: str, *, poll_s: float = 0.2) -> AsyncIterator[Logged]:
        """Yield records appended after ``after``. Raises StoreError when it is pruned."""
        async for logged in follow_log(after or self._log[-1].cursor, self._read_log, poll_s):
            yield logged

    async def scan(self, batch: int = 1024) -> AsyncIterator[Sequence[VectorRow]]:
        """Yield the vectors of the entries that live now, oldest first."""
        rows = self._rows(self._entries.values())
        for start in range(0, len(rows), batch):
            yield rows[start : start + batch]

    async def entries(self, batch: int = 256) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries that live now, oldest first."""
        ids = tuple(self._entries)
        for start in range(0, len(ids), batch):
            loaded = await self.load(ids[start : start + batch])
            yield [entry for entry in loaded if entry is not None]

    async def touch(self, ids: Sequence[str]) -> None:
        """Mark entries as used now."""
        for id in ids:
            if id in self._used:
                self._used.move_to_end(id)

    async def stats(self) -> StoreStats:
        """Count entries and their bytes; expired ones count until the next append."""
        return StoreStats(entries=len(self._entries), bytes=self._bytes)

    async def label(self, labels: Sequence[Label]) -> None:
        """Append labels; the last ``LABEL_ROWS`` are kept."""
        for domain, value in [(label.domain, encode_label(label)) for label in labels]:
            self._labels.append((domain, value))
            self._labelled += 1
            self._of_domain[domain].append(self._labelled)
        while len(self._labels) > LABEL_ROWS:
            domain, _ = self._labels.popleft()
            self._of_domain[domain].popleft()
            if not self._of_domain[domain]:
                del self._of_domain[domain]

    async def labels(
        self, after: str = "", limit: int = 1000, *, domain: str | None = None
    ) -> Sequence[tuple[str, Label]]:
        """Return labels after a cursor. Raises StoreError when it is none of a label."""
        return await self._label_reader.labels(after, limit, domain)

    async def keep(self, name: str, value: bytes) -> None:
        """Keep a document; the last ``DOCUMENTS`` written are kept."""
        self._documents.pop(name, None)
        self._documents[name] = value
        if len(self._documents) > DOCUMENTS:
            del self._documents[next(iter(self._documents))]

    async def kept(self, name: str) -> bytes | None:
        """Return a kept document, or None."""
        return self._documents.get(name)

    async def secret(self) -> bytes:
        """Return 32 random bytes, other ones in each object."""
        return self._secret

    async def book(self, rows: Sequence[Served]) -> None:
        """Append to the books, which keep the last ``BOOK_ROWS``."""
        self._books.extend(encode_served(row) for row in rows)

    async def books(self, since: float = 0.0) -> AsyncIterator[Served]:
        """Yield the rows booked until now."""
        for value in tuple(self._books):
            served = decode_served(value)
            if served is not None and served.at >= since:
                yield served

    def _lives(self, sealed: Sealed) -> bool:
        return sealed.expires is None or sealed.expires > self._clock()

    def _rows(self, stored: Iterable[Sealed | None]) -> list[VectorRow]:
        """Return what an index needs of the entries that live and have a vector."""
        return [
            row
            for sealed in stored
            if sealed is not None and self._lives(sealed) and (row := sealed.row()) is not None
        ]

    def _load(self, id: str) -> Entry | None:
        sealed = self._entries.get(id)
        return open_entry(sealed.value) if sealed is not None and self._lives(sealed) else None

    def _store(self, sealed: Sealed) -> None:
        self._remove((self._by_exact.get(sealed.exact, ""), sealed.id))
        self._entries[sealed.id] = sealed
        self._by_exact[sealed.exact] = sealed.id
        self._used[sealed.id] = None
        self._bytes += sealed.size
        if sealed.expires is not None:
            heappush(self._ends, (sealed.expires, sealed.id))
        self._write_log(sealed.id, deleted=False)

    def _remove(self, ids: Sequence[str]) -> None:
        for id in ids:
            sealed = self._entries.pop(id, None)
            if sealed is not None:
                del self._by_exact[sealed.exact], self._used[id]
                self._bytes -= sealed.size
                self._write_log(id, deleted=True)

    def _purge(self) -> None:
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, id = heappop(self._ends)
            if id in self._entries and not self._lives(self._entries[id]):
                self._remove((id,))
        if len(self._ends) > 2 * len(self._entries) + AT_ONCE:  # most are of entries long gone
            self._ends = [
                (sealed.expires, id)
                for id, sealed in self._entries.items()
                if sealed.expires is not None
            ]
            heapify(self._ends)

    def _evict(self) -> None:
        limits = self._limits
        while (limits.max_entries is not None and len(self._entries) > limits.max_entries) or (
            limits.max_bytes is not None and self._bytes > limits.max_bytes
        ):
            self._remove((next(iter(self._used)),))

    async def _read_labels(
        self, after: str, limit: int, domain: str | None
    ) -> Sequence[tuple[str, bytes]]:
        oldest = self._labelled - len(self._labels) + 1
        numbers: Sequence[int] = range(oldest, self._labelled + 1)
        if domain is not None:
            numbers = self._of_domain.get(domain, ())
        first = bisect_right(numbers, row_number(after))
        asked = [numbers[place] for place in range(first, min(first + limit, len(numbers)))]
        return [(row_cursor(number), self._labels[number - oldest][1]) for number in asked]

    def _write_log(self, id: str, *, deleted: bool) -> None:
        self._logged += 1
        self._log.append(LogRow(str(self._logged), deleted, id))

    async def _read_log(self, cursor: str) -> tuple[Sequence[LogRow], Mapping[str, VectorRow]]:
        behind = self._logged - int(cursor)
        first = max(len(self._log) - 1 - behind, 0)
        last = min(first + AT_ONCE, len(self._log))
        rows = after_cursor([self._log[place] for place in range(first, last)], cursor)
        live = (self._entries.get(id) for id in stored_ids(rows))
        return rows, {row.id: row for row in self._rows(live)}
