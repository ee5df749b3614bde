"""What the writer thread does: one transaction for all that came together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headstart.embeddings.stores.codec import Sealed
from headstart.embeddings.stores.labels import DOCUMENTS, LABEL_ROWS
from headstart.embeddings.stores.log import AT_ONCE, BOOK_ROWS, LOG_ROWS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from headstart.embeddings.stores.codec import Limits
    from headstart.types import Delete

HAS_EXPIRED = "SELECT EXISTS (SELECT 1 FROM entries WHERE expires <= ?)"
PURGE = """DELETE FROM entries WHERE seq IN
    (SELECT seq FROM entries WHERE expires <= ? ORDER BY expires LIMIT ?)"""
PRUNE_LOG = "DELETE FROM log WHERE seq <= (SELECT max(seq) FROM log) - ?"
PRUNE_BOOKS = "DELETE FROM books WHERE seq <= (SELECT max(seq) FROM books) - ?"
PRUNE_LABELS = "DELETE FROM labels WHERE seq <= (SELECT max(seq) FROM labels) - ?"
PRUNE_DOCUMENTS = """DELETE FROM documents WHERE seq IN (SELECT seq FROM documents ORDER BY seq
    LIMIT max((SELECT count(*) FROM documents) - ?, 0))"""


class Write(NamedTuple):
    """One caller's share of a transaction."""

    touched: Sequence[tuple[float, str]] = ()
    records: Sequence[Sealed | Delete] = ()
    booked: Sequence[tuple[float, bytes]] = ()
    labels: Sequence[tuple[str, bytes]] = ()
    documents: Sequence[tuple[str, bytes]] = ()


class Writer:
    """Commits batches to one connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._clock = clock

    def commit(self, writes: Sequence[Write]) -> Sequence[str]:
        """Write all or nothing, purge and evict. Returns the log's end for each write.

        Without writes it purges what has expired, if anything has.

        Raises sqlite3.Error, then nothing was written.
        """
        if not writes and not self._has_expired():
            return ()
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            self._apply(writes)
            (cursor,) = execute("SELECT max(seq) FROM log").fetchone()
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        return [str(cursor)] * len(writes)

    def _has_expired(self) -> bool:
        (expired,) = self._connection.execute(HAS_EXPIRED, (self._clock(),)).fetchone()
        return bool(expired)

    def _apply(self, writes: Sequence[Write]) -> None:
        now = self._clock()
        touched = [touch for write in writes for touch in write.touched]
        self._connection.executemany("UPDATE entries SET used = ? WHERE id = ?", touched)
        self._connection.execute(PURGE, (now, AT_ONCE))
        for write in writes:
            for record in write.records:
                if isinstance(record, Sealed):
                    self._store(record, now)
                else:
                    self._delete(record)
        self._evict()
        self._connection.execute(PRUNE_LOG, (LOG_ROWS,))
        self._write_beside(writes)

    def _write_beside(self, writes: Sequence[Write]) -> None:
        """Append to the books and the labels, and replace documents: none of it is in the log."""
        execute, executemany = self._connection.execute, self._connection.executemany
        if booked := [row for write in writes for row in write.booked]:
            executemany("INSERT INTO books (at, value) VALUES (?, ?)", booked)
            execute(PRUNE_BOOKS, (BOOK_ROWS,))
        if labels := [row for write in writes for row in write.labels]:
            executemany("INSERT INTO labels (domain, value) VALUES (?, ?)", labels)
            execute(PRUNE_LABELS, (LABEL_ROWS,))
        if documents := [document for write in writes for document in write.documents]:
            executemany("REPLACE INTO documents (name, value) VALUES (?, ?)", documents)
            execute(PRUNE_DOCUMENTS, (DOCUMENTS,))

    def _store(self, sealed: Sealed, now: float) -> None:
        execute = self._connection.execute
        execute("DELETE FROM entries WHERE id = ? OR exact = ?", (sealed.id, sealed.exact))
        stored = execute(
            """INSERT INTO entries
            (id, exact, partition, scope, encoder, created, expires, used, bytes, value)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (*sealed[:7], now, sealed.size, sealed.value),
        )
        if sealed.vector is not None:
            execute("INSERT INTO vectors VALUES (?, ?)", (stored.lastrowid, sealed.vector))

    def _delete(self, record: Delete) -> None:
        self._connection.executemany(
            "DELETE FROM entries WHERE id = ?", [(id,) for id in record.ids]
        )

    def _evict(self) -> None:
        """Delete the least recently used until both bounds hold, ``AT_ONCE`` at most."""
        entries, size = self._connection.execute("SELECT entries, bytes FROM totals").fetchone()
        max_entries, max_bytes = self._limits.max_entries, self._limits.max_bytes
        oldest = self._connection.execute(
            "SELECT seq, bytes FROM entries ORDER BY used, seq LIMIT ?", (AT_ONCE,)
        )
        doomed = []
        while (max_entries is not None and entries > max_entries) or (
            max_bytes is not None and size > max_bytes
        ):
            row = oldest.fetchone()
            if row is None:
                break
            doomed.append(row[:1])
            entries, size = entries - 1, size - row[1]
        oldest.close()
        self._connection.executemany("DELETE FROM entries WHERE seq = ?", doomed)
