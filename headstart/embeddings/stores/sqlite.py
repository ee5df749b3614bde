"""Entries in one SQLite file, durable against the death of the process; several may share it.

Acknowledged means committed under WAL with ``synchronous = NORMAL``: a kill -9 loses nothing of
it, a power cut may lose the last moments. The loop never touches the file: one thread writes in
group commits, another reads.
"""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio.to_thread import run_sync

from headstart.embeddings.stores.codec import (
    Limits,
    Sealed,
    encode_label,
    encode_served,
    seal,
)
from headstart.embeddings.stores.labels import LabelReader, row_number
from headstart.embeddings.stores.log import LogRow, after_cursor, follow_log
from headstart.embeddings.stores.sqlite_file import open_file
from headstart.embeddings.stores.sqlite_reader import (
    find_entry,
    load_entries,
    log_end,
    page_entries,
    read_books,
    read_document,
    read_labels,
    read_log,
    read_secret,
    read_totals,
    run_queries,
    scan_vectors,
)
from headstart.embeddings.stores.sqlite_writer import Write, Writer
from headstart.embeddings.stores.worker import Worker
from headstart.errors import StoreError
from headstart.observe import Committed, Observers
from headstart.types import Entry, Logged, Put, Record, StoreStats, VectorRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from headstart.decisions import Label
    from headstart.embeddings.stores.sqlite_file import OnCorrupt
    from headstart.interfaces import Observer
    from headstart.observe import Served

T = TypeVar("T")

TICK_S = 1.0
"""Without other writes, what has expired is purged this often."""


class SQLiteStore:
    """A Store in the file ``path``, which is created with mode 0600.

    ``on_corrupt="fresh"`` moves a damaged file aside instead of refusing to start. ``busy_s`` is
    how long to wait for another process's lock.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default
        observer: Observer | None = None,
        on_corrupt: OnCorrupt = "fail",
        busy_s: float = 5.0,
    ) -> None:
        self._path = Path(path)
        self._limits = limits or Limits()
        self._clock = clock
        self._observer = observer or Observers()
        self._on_corrupt: OnCorrupt = on_corrupt
        self._busy_s = busy_s
        self._writer: Worker[Write, str] | None = None
        self._reader: Worker[Callable[[sqlite3.Connection], object], object] | None = None
        self._connections: tuple[sqlite3.Connection, ...] = ()
        self._label_reader = LabelReader(self._read_labels)

    async def open(self) -> None:
        """Open or create the file and start both threads. Raises ConfigError."""
        writing, reading = self._connections = await run_sync(
            partial(open_file, self._path, on_corrupt=self._on_corrupt, busy_s=self._busy_s)
        )
        writer = Writer(writing, self._limits, self._clock)
        self._writer = Worker("headstart-store-writer", writer.commit, tick_s=TICK_S)
        self._reader = Worker("headstart-store-reader", partial(run_queries, reading))

    async def aclose(self) -> None:
        """Commit what was appended, then close. Cancellation waits for it."""
        with anyio.CancelScope(shield=True):
            if self._reader is not None and self._writer is not None:
                await self._reader.aclose()
                await self._writer.aclose()
            for connection in self._connections:
                await run_sync(connection.close)
        self._connections = ()

    async def find(self, exact: str) -> Entry | None:
        """Return the live entry under an exact key."""
        return await self._read(partial(find_entry, exact=exact, now=self._clock()))

    async def load(self, ids: Sequence[str]) -> Sequence[Entry | None]:
        """Return entries in the order of ``ids``; None where one is gone."""
        return await self._read(partial(load_entries, ids=ids, now=self._clock()))

    async def append(self, records: Sequence[Record]) -> str:
        """Write records in the next group commit. Raises StoreError: then none was written."""
        sealed = [
            seal(record.entry, record.vector, self._limits) if isinstance(record, Put) else record
            for record in records
        ]
        cursor = await self._write(Write(records=sealed))
        for record in sealed:
            if isinstance(record, Sealed):
                self._observer.notify(Committed(id=record.id, bytes=record.size))
        return cursor

    async def cursor(self) -> str:
        """Return the log's end, with what other processes committed."""
        return await self._read(log_end)

    async def follow(self, after: str, *, poll_s: float = 0.2) -> AsyncIterator[Logged]:
        """Yield records of all processes after ``after``. Raises StoreError when it is pruned."""
        async for logged in follow_log(after or await self.cursor(), self._read_log, poll_s):
            yield logged

    async def scan(self, batch: int = 1024) -> AsyncIterator[Sequence[VectorRow]]:
        """Yield the vectors of live entries, oldest first; one short query a batch."""
        last = 0
        while True:
            rows, last = await self._read(
                partial(scan_vectors, after=last, batch=batch, now=self._clock())
            )
            if not rows:
                return
            yield rows

    async def entries(self, batch: int = 256) -> AsyncIterator[Sequence[Entry]]:
        """Yield live entries, oldest first; one short query a batch."""
        last: int | None = 0
        while last is not None:
            page, last = await self._read(
                partial(page_entries, after=last, batch=batch, now=self._clock())
            )
            yield page

    async def touch(self, ids: Sequence[str]) -> None:
        """Mark entries as used now, in the next group commit."""
        now = self._clock()
        await self._write(Write(touched=[(now, id) for id in ids]))

    async def stats(self) -> StoreStats:
        """Count entries and their bytes; expired ones count until they are purged."""
        return await self._read(read_totals)

    async def label(self, labels: Sequence[Label]) -> None:
        """Append labels in the next group commit; the last ``LABEL_ROWS`` are kept."""
        await self._write(Write(labels=[(label.domain, encode_label(label)) for label in labels]))

    async def labels(
        self, after: str = "", limit: int = 1000, *, domain: str | None = None
    ) -> Sequence[tuple[str, Label]]:
        """Return labels of all processes after a cursor, in the order of their commits."""
        return await self._label_reader.labels(after, limit, domain)

    async def keep(self, name: str, value: bytes) -> None:
        """Keep a document in the next group commit; the last ``DOCUMENTS`` written are kept."""
        await self._write(Write(documents=[(name, value)]))

    async def kept(self, name: str) -> bytes | None:
        """Return a kept document, whichever process wrote it, or None."""
        return await self._read(partial(read_document, name=name))

    async def secret(self) -> bytes:
        """Return the 32 random bytes made with the file."""
        return await self._read(read_secret)

    async def book(self, rows: Sequence[Served]) -> None:
        """Append to the books in the next group commit; they keep the last ``BOOK_ROWS``."""
        await self._write(Write(booked=[(row.at, encode_served(row)) for row in rows]))

    async def books(self, since: float = 0.0) -> AsyncIterator[Served]:
        """Yield booked rows in the order of booking; one short query a batch."""
        last: int | None = 0
        while last is not None:
            page, last = await self._read(partial(read_books, after=last, since=since))
            for served in page:
                yield served

    async def _read_log(self, cursor: str) -> tuple[Sequence[LogRow], Mapping[str, VectorRow]]:
        rows, vectors = await self._read(partial(read_log, cursor=cursor, now=self._clock()))
        return after_cursor(rows, cursor), vectors

    async def _read_labels(
        self, after: str, limit: int, domain: str | None
    ) -> Sequence[tuple[str, bytes]]:
        return await self._read(
            partial(read_labels, after=row_number(after), limit=limit, domain=domain)
        )

    async def _write(self, write: Write) -> str:
        if self._writer is None:
            raise StoreError("the store is not open")
        try:
            return await self._writer.submit(write)
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot write: {error}") from error

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        if self._reader is None:
            raise StoreError("the store is not open")
        try:
            return await self._reader.submit(query)  # type: ignore[return-value]
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot read: {error}") from error
