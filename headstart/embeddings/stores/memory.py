"""A store in this process's memory, for tests and for deployments that keep nothing."""

from __future__ import annotations

import math
import secrets
from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, Unpack

from headstart.embeddings.stores.records import (
    BATCH_ROWS,
    BOOK_ROWS,
    DOCUMENTS,
    LABEL_ROWS,
    LOG_ROWS,
    DeletionClock,
    EncodedPut,
    LogRow,
    RecordStore,
    after_cursor,
    charge_all,
    decode,
    encode,
    row_cursor,
    row_number,
    stored_ids,
)
from headstart.observe import Observer, Served
from headstart.types import Charge, Charged, Delete, Entry, Latest, StoreStats, VectorRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from headstart.decisions import Label
    from headstart.embeddings.stores.records import EncodedRecord, StoreOptions


class _Counter(NamedTuple):
    value: int = 0
    expires: float = 0.0


class MemoryStore(RecordStore):
    """Keeps entries in memory, encoded as in a durable store: ``max_bytes`` means the same."""

    def __init__(self, **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self._deleting = DeletionClock(self._clock)
        self._entries: dict[str, EncodedPut] = {}
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
        self._documents: Latest[str, bytes] = Latest(DOCUMENTS)
        self._counters: dict[str, _Counter] = {}
        self._secret = self._new_secret or secrets.token_bytes(32)

    def observe(self, observer: Observer) -> None:
        """Notify the observers of another engine."""
        self._observer = observer

    async def open(self) -> None:
        """Do nothing: there is nothing to open."""

    async def aclose(self) -> None:
        """Do nothing: the entries go with the object."""

    async def find(self, exact: str) -> Entry | None:
        """Return the live entry under an exact key."""
        return self._load(self._by_exact.get(exact, ""))

    async def load(self, ids: Sequence[str]) -> Sequence[Entry | None]:
        """Return entries in the order of ``ids``; None for an entry that is gone."""
        return [self._load(id) for id in ids]

    async def cursor(self) -> str:
        """Return the log's end."""
        return self._log[-1].cursor

    async def scan(self, batch: int = 1024) -> AsyncIterator[Sequence[VectorRow]]:
        """Yield the vectors and sketches of the entries that live now, oldest first."""
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
        """Count entries and their bytes. Expired entries count until the next append."""
        return StoreStats(
            entries=len(self._entries), bytes=self._bytes, write_error=self._write_error
        )

    async def add_labels(self, labels: Sequence[Label]) -> None:
        """Append labels. The store keeps the last ``LABEL_ROWS``."""
        for domain, value in [(label.domain, encode(label)) for label in labels]:
            self._labels.append((domain, value))
            self._labelled += 1
            self._of_domain[domain].append(self._labelled)
        while len(self._labels) > LABEL_ROWS:
            domain, _ = self._labels.popleft()
            self._of_domain[domain].popleft()
            if not self._of_domain[domain]:
                del self._of_domain[domain]

    async def save_document(self, name: str, value: bytes) -> None:
        """Save a document. The store keeps the last ``DOCUMENTS`` that were written."""
        self._documents[name] = value

    async def load_document(self, name: str) -> bytes | None:
        """Return a saved document, or None."""
        return self._documents.get(name)

    async def _charge(self, charges: Sequence[Charge]) -> Charged:
        """Add to counters, all or none."""
        now = self._deleting()
        counters = {name: kept for name, kept in self._counters.items() if kept.expires > now}
        values = [counters.get(each.counter, _Counter()).value for each in charges]
        charged = charge_all(charges, values)
        if charged.added:
            for each, value in zip(charges, charged.values, strict=True):
                counters[each.counter] = _Counter(value, each.expires)
        self._counters = counters
        return charged

    async def secret(self) -> bytes:
        """Return 32 random bytes, different in each object."""
        return self._secret

    async def add_to_books(self, rows: Sequence[Served]) -> None:
        """Append to the books, which keep the last ``BOOK_ROWS`` rows."""
        self._books.extend(encode(row) for row in rows)

    async def read_books(self, since: float = 0.0) -> AsyncIterator[Served]:
        """Yield the rows that were booked until now."""
        for value in tuple(self._books):
            served = decode(Served, value)
            if served is not None and served.at >= since:
                yield served

    def _lives(self, put: EncodedPut) -> bool:
        return put.expires is None or put.expires > self._clock()

    def _rows(self, stored: Iterable[EncodedPut | None]) -> list[VectorRow]:
        """Return the index rows of the live entries that have a vector or a sketch."""
        return [
            row
            for put in stored
            if put is not None and self._lives(put) and (row := put.row()) is not None
        ]

    def _load(self, id: str) -> Entry | None:
        put = self._entries.get(id)
        return None if put is None or not self._lives(put) else decode(Entry, put.value)

    async def _append(self, records: Sequence[EncodedRecord]) -> str:
        self._purge()
        for record in records:
            if isinstance(record, Delete):
                self._remove(record.ids)
            elif record.amends:
                self._amend(record)
            else:
                self._store(record)
        self._evict()
        return self._log[-1].cursor

    def _store(self, put: EncodedPut) -> None:
        self._remove((self._by_exact.get(put.exact, ""), put.id))
        self._entries[put.id] = put
        self._by_exact[put.exact] = put.id
        self._used[put.id] = None
        self._bytes += put.size
        if put.expires is not None:
            heappush(self._ends, (put.expires, put.id))
        self._write_log(put.id, deleted=False)

    def _amend(self, put: EncodedPut) -> None:
        before = self._entries.get(put.id)
        if before is not None:
            self._entries[put.id] = put
            self._bytes += put.size - before.size
            self._write_log(put.id, deleted=False)

    def _remove(self, ids: Sequence[str]) -> None:
        for id in ids:
            put = self._entries.pop(id, None)
            if put is not None:
                del self._by_exact[put.exact], self._used[id]
                self._bytes -= put.size
                self._write_log(id, deleted=True)

    def _purge(self) -> None:
        now = self._clock()
        if self._ends and self._ends[0][0] <= now:
            now = self._deleting()
        while self._ends and self._ends[0][0] <= now:
            _, id = heappop(self._ends)
            if (put := self._entries.get(id)) is not None and (put.expires or math.inf) <= now:
                self._remove((id,))
        # Most ends belong to entries that are gone.
        if len(self._ends) > 2 * len(self._entries) + BATCH_ROWS:
            self._ends = [
                (put.expires, id) for id, put in self._entries.items() if put.expires is not None
            ]
            heapify(self._ends)

    def _evict(self) -> None:
        limits = self._limits
        most_entries = math.inf if limits.max_entries is None else limits.max_entries
        most_bytes = math.inf if limits.max_bytes is None else limits.max_bytes
        while len(self._entries) > most_entries or self._bytes > most_bytes:
            self._remove((next(iter(self._used)),))

    async def _label_rows(
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
        if not behind:
            return (), {}
        first = max(len(self._log) - 1 - behind, 0)
        last = min(first + BATCH_ROWS, len(self._log))
        rows = after_cursor([self._log[place] for place in range(first, last)], cursor)
        live = (self._entries.get(id) for id in stored_ids(rows))
        return rows, {row.id: row for row in self._rows(live)}
