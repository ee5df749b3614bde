"""What the reader thread does: short queries, each in a snapshot of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.embeddings.stores.codec import decode_served, open_entry
from headstart.embeddings.stores.labels import row_cursor
from headstart.embeddings.stores.log import AT_ONCE, LogRow, stored_ids
from headstart.types import Entry, StoreStats, VectorRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from headstart.observe import Served


def run_queries(
    connection: sqlite3.Connection, queries: Sequence[Callable[[sqlite3.Connection], object]]
) -> Sequence[object]:
    """Run each query; one that fails leaves its exception as its result."""
    return [_attempt(connection, query) for query in queries]


def _attempt(
    connection: sqlite3.Connection, query: Callable[[sqlite3.Connection], object]
) -> object:
    try:
        return query(connection)
    except Exception as error:  # noqa: BLE001 - its submitter raises it, the others go on
        return error


def find_entry(connection: sqlite3.Connection, *, exact: str, now: float) -> Entry | None:
    """Return the live entry under an exact key."""
    row = connection.execute(
        "SELECT value FROM entries WHERE exact = ? AND (expires IS NULL OR expires > ?)",
        (exact, now),
    ).fetchone()
    return None if row is None else open_entry(row[0])


def load_entries(
    connection: sqlite3.Connection, *, ids: Sequence[str], now: float
) -> Sequence[Entry | None]:
    """Return entries in the order of ``ids``."""
    return [_load_entry(connection, id, now) for id in ids]


def _load_entry(connection: sqlite3.Connection, id: str, now: float) -> Entry | None:
    row = connection.execute(
        "SELECT value FROM entries WHERE id = ? AND (expires IS NULL OR expires > ?)",
        (id, now),
    ).fetchone()
    return None if row is None else open_entry(row[0])


VECTORS = """SELECT entries.seq, id, partition, encoder, vector FROM entries
    JOIN vectors ON vectors.seq = entries.seq WHERE (expires IS NULL OR expires > ?)"""


def scan_vectors(
    connection: sqlite3.Connection, *, after: int, batch: int, now: float
) -> tuple[Sequence[VectorRow], int]:
    """Return a batch of live vectors after a place, and the place of its last."""
    rows = connection.execute(
        f"{VECTORS} AND entries.seq > ? ORDER BY entries.seq LIMIT ?", (now, after, batch)
    ).fetchall()
    return [_vector_row(*row) for row in rows], rows[-1][0] if rows else after


def _vector_row(_: int, id: str, partition: str, encoder: str, vector: bytes) -> VectorRow:
    return VectorRow(id=id, partition=partition, encoder=encoder, vector=vector)


def page_entries(
    connection: sqlite3.Connection, *, after: int, batch: int, now: float
) -> tuple[Sequence[Entry], int | None]:
    """Return a batch of live entries after a place, and its last place; None: that was all."""
    rows = connection.execute(
        """SELECT seq, value FROM entries
        WHERE seq > ? AND (expires IS NULL OR expires > ?) ORDER BY seq LIMIT ?""",
        (after, now, batch),
    ).fetchall()
    page = [entry for _, value in rows if (entry := open_entry(value)) is not None]
    return page, rows[-1][0] if rows else None


def read_log(
    connection: sqlite3.Connection, *, cursor: str, now: float
) -> tuple[Sequence[LogRow], dict[str, VectorRow]]:
    """Return log rows from a cursor's own on, and the vectors of stored entries that still live."""
    rows = [
        LogRow(str(seq), bool(deleted), id)
        for seq, deleted, id in connection.execute(
            "SELECT seq, deleted, id FROM log WHERE seq >= ? ORDER BY seq LIMIT ?",
            (int(cursor), AT_ONCE),
        )
    ]
    vectors = {
        id: _vector_row(*row)
        for id in stored_ids(rows[1:])
        for row in connection.execute(f"{VECTORS} AND id = ?", (now, id))
    }
    return rows, vectors


def log_end(connection: sqlite3.Connection) -> str:
    """Return the place of the log's last row."""
    (seq,) = connection.execute("SELECT max(seq) FROM log").fetchone()
    return str(seq)


def read_totals(connection: sqlite3.Connection) -> StoreStats:
    """Return what the triggers counted."""
    entries, size = connection.execute("SELECT entries, bytes FROM totals").fetchone()
    return StoreStats(entries=entries, bytes=size)


def read_secret(connection: sqlite3.Connection) -> bytes:
    """Return the random bytes made with the file."""
    (secret,) = connection.execute("SELECT value FROM secret").fetchone()
    return bytes(secret)


def read_labels(
    connection: sqlite3.Connection, *, after: int, limit: int, domain: str | None
) -> Sequence[tuple[str, bytes]]:
    """Return labels after a place, of a domain or of all: each one's cursor and envelope."""
    if domain is None:
        rows = connection.execute(
            "SELECT seq, value FROM labels WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
        )
    else:
        rows = connection.execute(
            "SELECT seq, value FROM labels WHERE domain = ? AND seq > ? ORDER BY seq LIMIT ?",
            (domain, after, limit),
        )
    return [(row_cursor(seq), value) for seq, value in rows]


def read_document(connection: sqlite3.Connection, *, name: str) -> bytes | None:
    """Return a kept document, or None."""
    row = connection.execute("SELECT value FROM documents WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0])


def read_books(
    connection: sqlite3.Connection, *, after: int, since: float
) -> tuple[Sequence[Served], int | None]:
    """Return a page of the books after a place, and its last place; None: that was all."""
    rows = connection.execute(
        "SELECT seq, value FROM books WHERE seq > ? AND at >= ? ORDER BY seq LIMIT ?",
        (after, since, AT_ONCE),
    ).fetchall()
    page = [served for _, value in rows if (served := decode_served(value)) is not None]
    return page, rows[-1][0] if rows else None
