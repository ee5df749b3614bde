"""Entries in one SQLite file, which several processes may share.

An acknowledged write was committed under WAL with ``synchronous = NORMAL``. It survives the death
of the process; a power cut may lose the last moments. The event loop never touches the file: one
thread writes in group commits, and another thread reads. Each thread is a ``BatchWorker``.

The functions of the first part create the file, or check and accept it. They block, so they are not
called on the event loop. Triggers in the file keep the totals exact, delete a vector with its
entry, and write each change to the log.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import sqlite3
import threading
import time
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, Unpack, cast

import anyio

from headstart.embeddings.stores.records import (
    BATCH_ROWS,
    BOOK_ROWS,
    DOCUMENTS,
    LABEL_ROWS,
    LOG_ROWS,
    BatchWorker,
    DeletionClock,
    EncodedPut,
    LogRow,
    RecordStore,
    StoreLimits,
    after_cursor,
    charge_all,
    checked_secret,
    decode,
    encode,
    index_row,
    row_cursor,
    row_number,
    stored_ids,
)
from headstart.errors import ConfigError, StoreError
from headstart.observe import Served, logger
from headstart.types import Charge, Charged, Entry, Sketch, StoreStats, T, VectorRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from headstart.decisions import Label
    from headstart.embeddings.stores.records import EncodedRecord, StoreOptions
    from headstart.settings import OnCorrupt

APPLICATION_ID = 0x48656164  # "Head"
ENTRIES = (
    """CREATE TABLE entries (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, exact TEXT NOT NULL UNIQUE,
        partition TEXT NOT NULL, scope TEXT NOT NULL, encoder TEXT NOT NULL,
        created REAL NOT NULL, expires REAL, used REAL NOT NULL,
        bytes INTEGER NOT NULL, value BLOB NOT NULL)""",
    "CREATE INDEX entries_used ON entries (used)",
    "CREATE INDEX entries_expires ON entries (expires) WHERE expires IS NOT NULL",
    "CREATE TABLE vectors (seq INTEGER PRIMARY KEY, vector BLOB NOT NULL)",
    # The log is never empty, so no number is used twice, even without AUTOINCREMENT.
    "CREATE TABLE log (seq INTEGER PRIMARY KEY, deleted INTEGER NOT NULL, id TEXT NOT NULL)",
    "INSERT INTO log (deleted, id) VALUES (1, '')",
    "CREATE TABLE books (seq INTEGER PRIMARY KEY, at REAL NOT NULL, value BLOB NOT NULL)",
    "CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "INSERT INTO totals VALUES (0, 0)",
    "CREATE TABLE secret (value BLOB NOT NULL)",
    """CREATE TRIGGER entry_stored AFTER INSERT ON entries BEGIN
        UPDATE totals SET entries = entries + 1, bytes = bytes + NEW.bytes;
        INSERT INTO log (deleted, id) VALUES (0, NEW.id);
    END""",
    """CREATE TRIGGER entry_gone AFTER DELETE ON entries BEGIN
        UPDATE totals SET entries = entries - 1, bytes = bytes - OLD.bytes;
        DELETE FROM vectors WHERE seq = OLD.seq;
        INSERT INTO log (deleted, id) VALUES (1, OLD.id);
    END""",
)


# IF NOT EXISTS: a process of version 1 that starts during this migration may set the version back.
LABEL_TABLES = (
    # Only the oldest labels are deleted, and never all of them. So no number is used twice.
    """CREATE TABLE IF NOT EXISTS labels
        (seq INTEGER PRIMARY KEY, domain TEXT NOT NULL, value BLOB NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS labels_domain ON labels (domain)",
    # In the order of writing: a document gets a new number each time it is written.
    """CREATE TABLE IF NOT EXISTS documents
        (seq INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, value BLOB NOT NULL)""",
)
SKETCHES = (
    """CREATE TABLE IF NOT EXISTS sketches
        (seq INTEGER PRIMARY KEY, sketcher TEXT NOT NULL, sketch BLOB NOT NULL)""",
    """CREATE TRIGGER IF NOT EXISTS sketch_gone AFTER DELETE ON entries BEGIN
        DELETE FROM sketches WHERE seq = OLD.seq;
    END""",
    """CREATE TRIGGER IF NOT EXISTS entry_amended AFTER UPDATE OF value ON entries BEGIN
        UPDATE totals SET bytes = bytes + NEW.bytes - OLD.bytes;
        INSERT INTO log (deleted, id) VALUES (0, NEW.id);
    END""",
)
COUNTERS = (
    """CREATE TABLE IF NOT EXISTS counters
        (name TEXT PRIMARY KEY, value INTEGER NOT NULL, expires REAL NOT NULL) WITHOUT ROWID""",
)
MIGRATIONS = (ENTRIES, LABEL_TABLES, SKETCHES, COUNTERS)
"""The statements that lead from each schema version to the next."""
SCHEMA_VERSION = len(MIGRATIONS)
LONGEST_CHECK_S = 5.0
"""The longest time of the check at the start. If it misses damage, later reads may fail."""


Connections: TypeAlias = "tuple[sqlite3.Connection, sqlite3.Connection]"
"""A connection for writing and one for reading."""


class _CorruptFileError(Exception):
    """The file is damaged or is not a database, so it may be moved aside."""


def open_file(
    path: Path, *, on_corrupt: OnCorrupt, busy_s: float, new_secret: bytes | None = None
) -> Connections:
    """Open or create a store's file; return a connection for writing and one for reading.

    Raises ConfigError if the file is locked, is not writable, is of another application or of a
    newer schema, or if it is damaged and ``on_corrupt`` is "fail". If ``on_corrupt`` is "fresh", a
    damaged file is renamed, and an empty one is made.
    """
    try:
        return _open_pair(path, busy_s, new_secret)
    except _CorruptFileError as error:
        if on_corrupt == "fail":
            raise ConfigError(
                f"cache.store: {path} is damaged or is not a database ({error}); restore or delete"
                ' it, or set cache.on_corrupt = "fresh" to have it moved aside'
            ) from error.__cause__
    with _explained(path):
        aside = _move_aside(path)
    logger.warning("the store %s was damaged: moved to %s, starting empty", path, aside)
    try:
        return _open_pair(path, busy_s, new_secret)
    except _CorruptFileError as error:
        raise ConfigError(f"cache.store: {path} cannot be used ({error})") from error.__cause__


def _open_pair(path: Path, busy_s: float, new_secret: bytes | None) -> Connections:
    with contextlib.ExitStack() as opened, _explained(path):
        _create(path)
        writer = opened.enter_context(contextlib.closing(_connect(path, busy_s)))
        writer.execute("PRAGMA synchronous = NORMAL")
        _refuse_foreign(writer, path)
        _enter_wal(writer, busy_s)
        _check(writer)
        _migrate(writer, new_secret or secrets.token_bytes(32))
        reader = opened.enter_context(contextlib.closing(_connect(path, busy_s)))
        reader.execute("PRAGMA query_only = ON")
        opened.pop_all()
        return writer, reader


def _create(path: Path) -> None:
    """Make an empty file that only its owner may read. SQLite gives its WAL files the same mode."""
    if path.is_dir():
        raise ConfigError(f"cache.store: {path} is a folder; name a file in it")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        # Never open an existing file here: closing it would drop SQLite's own locks on it.
        # SQLite would make the file behind a link itself, readable by others.
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL, 0o600))


def _connect(path: Path, busy_s: float) -> sqlite3.Connection:
    # Each connection serves one thread, but another thread opens it.
    return sqlite3.connect(
        path, timeout=busy_s, isolation_level=None, check_same_thread=False, cached_statements=64
    )


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise ConfigError(
            f"cache.store: {path} is a database of another application; name another file"
        )
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"cache.store: {path} was written by a newer Headstart (schema {version}, this one"
            f" knows {SCHEMA_VERSION}); upgrade, or name another file"
        )


def _enter_wal(connection: sqlite3.Connection, busy_s: float) -> None:
    """Switch to WAL. Retry, because SQLite does not wait here for a process that does the same."""
    deadline = time.monotonic() + busy_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise sqlite3.OperationalError(f"its file system allows journal mode {mode} only")
        return


def _migrate(connection: sqlite3.Connection, new_secret: bytes) -> None:
    """Make the missing tables. Raises sqlite3.Error if the file cannot be written."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for statement in chain.from_iterable(MIGRATIONS[version:]):
            connection.execute(statement)
        if version == 0:
            connection.execute("INSERT INTO secret VALUES (?)", (new_secret,))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        # It is always written: a read-only file fails here, and not at the first entry.
        # A newer process may have migrated the file in between: its version stays.
        connection.execute(f"PRAGMA user_version = {max(version, SCHEMA_VERSION)}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection) -> None:
    """Look for damage for ``LONGEST_CHECK_S``: a cold file of gigabytes would take a minute."""
    timer = threading.Timer(LONGEST_CHECK_S, connection.interrupt)
    timer.start()
    try:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if _code(error) != sqlite3.SQLITE_INTERRUPT:
            raise
        return logger.info("the store is too large to be checked as a whole at the start")
    finally:
        timer.cancel()
    if verdict != "ok":
        raise _CorruptFileError(verdict.splitlines()[-1])


def _move_aside(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into ConfigError or _CorruptFileError."""
    try:
        yield
    except OSError as error:
        why = f"{error.strerror}; name a file that can be written, or memory:"
        raise ConfigError(f"cache.store: {path} cannot be used: {why}") from error
    except sqlite3.Error as error:
        if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _CorruptFileError(str(error)) from error
        if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            why = "is locked by another process; stop it, or name another file"
            raise ConfigError(f"cache.store: {path} {why}") from error
        # SQLite may report a full disk as an I/O error.
        hint = "; is the disk full?" if _code(error) == sqlite3.SQLITE_IOERR else ""
        raise ConfigError(f"cache.store: {path} cannot be used: {error}{hint}") from error


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 if SQLite did not raise the error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


# --- the store ------------------------------------------------------------------------------------

Ts = TypeVarTuple("Ts")
Job = TypeVar("Job")

TICK_S = 1.0
"""Seconds without a write after which expired entries are removed."""
LONGEST_READ_S = 2.0
"""The longest wait of a request for a read. A disk that hangs must not block requests."""
LONGEST_WRITE_S = 8.0
"""The longest wait for a write. It includes the wait for another process's lock."""
LONGEST_OPEN_S = 30.0
"""The longest wait for the file at the start. It includes the check and the wait for a lock."""
LONGEST_CLOSE_S = 5.0
"""The longest wait for the last writes. A process must end even if the disk hangs."""


def _in_place(path: Path, run: Callable[[Sequence[Job]], T]) -> Callable[[Sequence[Job]], T]:
    """Return ``run`` with a check: it fails if the file was deleted or replaced meanwhile.

    Otherwise writes would go to a file that no new process can open.
    """
    opened: os.stat_result | None = None

    def run_in_place(jobs: Sequence[Job]) -> T:
        nonlocal opened
        with contextlib.suppress(FileNotFoundError):
            if opened is None:
                opened = path.stat()
            if not jobs or os.path.samestat(opened, path.stat()):
                return run(jobs)
        raise sqlite3.OperationalError(f"{path} was deleted or replaced: restart Headstart")

    return run_in_place


class SQLiteStore(RecordStore):
    """A Store in the file ``path``, which is created with mode 0600.

    ``on_corrupt="fresh"`` renames a damaged file instead of refusing to start. ``busy_s`` is the
    time to wait for another process's lock.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        on_corrupt: OnCorrupt = "fail",
        busy_s: float = 5.0,
        **options: Unpack[StoreOptions],
    ) -> None:
        super().__init__(**options)
        self._path = Path(path)
        self._on_corrupt: OnCorrupt = on_corrupt
        self._busy_s = busy_s
        self._writer: BatchWorker[SQLiteWrite, str | Charged] | None = None
        self._reader: BatchWorker[Callable[[sqlite3.Connection], object], object] | None = None
        self._reading: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open or create the file and start both threads.

        Raises ConfigError, or StoreError if the disk hangs. In that case the thread that opens the
        file is abandoned.
        """
        given_up = threading.Event()

        def open_now() -> tuple[Connections, DeletionClock]:
            pair = open_file(
                self._path,
                on_corrupt=self._on_corrupt,
                busy_s=self._busy_s,
                new_secret=self._new_secret,
            )
            deleting = DeletionClock(self._clock, last=_newest(pair[0]))
            if given_up.is_set():
                for connection in pair:
                    connection.close()
            return pair, deleting

        opener = BatchWorker[None, "tuple[Connections, DeletionClock]"](
            "store-opener", lambda jobs: [open_now() for _ in jobs]
        )
        try:
            (writing, reading), deleting = await opener.submit(None, LONGEST_OPEN_S)
        except StoreError as error:
            raise StoreError(
                f"cache.store: {self._path} cannot be opened: {error}. Its disk hangs or is very "
                "slow; name a file on another disk, or memory:"
            ) from None
        finally:
            given_up.set()
            await opener.aclose(0.0)
        writer = SQLiteWriter(writing, self._limits, self._clock, deleting)
        write = _in_place(self._path, writer.commit)
        read = _in_place(self._path, partial(_run_queries, reading))
        self._writer = BatchWorker("store-writer", write, end=writing.close, tick_s=TICK_S)
        self._reader = BatchWorker("store-reader", read, end=reading.close)
        self._reading = reading
        await self._check_cipher()

    async def aclose(self) -> None:
        """Commit everything that was appended, then close, even if this task is cancelled.

        A thread that hangs is abandoned. This damages nothing, because a commit is atomic.
        """
        if self._reader is None or self._reading is None or self._writer is None:
            return
        with anyio.CancelScope(shield=True):
            if not await self._reader.aclose(LONGEST_READ_S):
                with contextlib.suppress(sqlite3.Error):
                    self._reading.interrupt()
            if not await self._writer.aclose(LONGEST_CLOSE_S):
                logger.warning(
                    "the store %s did not close within %g s: the last answers may not be stored",
                    self._path,
                    LONGEST_CLOSE_S,
                )

    async def find(self, exact: str) -> Entry | None:
        """Return the live entry under an exact key."""
        read = partial(self._entry_under, exact)
        (entry,) = await self._read(_load, read, BY_EXACT, (exact,), self._clock())
        return entry

    async def load(self, ids: Sequence[str]) -> Sequence[Entry | None]:
        """Return entries in the order of ``ids``; None for an entry that is gone."""
        found = await self._read(_load, self._decode_entry, BY_ID, ids, self._clock())
        return [self._if_in_place(id, entry) for id, entry in zip(ids, found, strict=True)]

    async def cursor(self) -> str:
        """Return the end of the log, including the commits of other processes."""
        return str(await self._read(_read_value, "SELECT max(seq) FROM log", long=True))

    async def scan(self, batch: int = 1024) -> AsyncIterator[Sequence[VectorRow]]:
        """Yield vectors and sketches of live entries, oldest first, one short query a batch."""
        last = 0
        while rows := await self._read(_fetch, SCAN, (self._clock(), last, batch), long=True):
            found = (row for each in rows if (row := _vector_row(each)) is not None)
            yield [row for each in found if (row := self._decrypted(each)) is not None]
            last = rows[-1][0]

    async def entries(self, batch: int = 256) -> AsyncIterator[Sequence[Entry]]:
        """Yield live entries, oldest first, with one short query a batch."""
        last: int | None = 0
        while last is not None:
            values = last, self._clock(), batch
            page, last = await self._read(_page, self._decode_entry, PAGE, values, long=True)
            yield page

    async def touch(self, ids: Sequence[str]) -> None:
        """Mark entries as used now, in the next group commit."""
        await self._submit(SQLiteWrite(touched=[(self._clock(), id) for id in ids]))

    async def stats(self) -> StoreStats:
        """Count entries and their bytes. Expired entries count until they are removed."""
        ((entries, size),) = await self._read(_fetch, TOTALS)
        return StoreStats(entries=entries, bytes=size, write_error=self._write_error)

    async def add_labels(self, labels: Sequence[Label]) -> None:
        """Append labels in the next group commit. The store keeps the last ``LABEL_ROWS``."""
        await self._submit(SQLiteWrite(labels=[(each.domain, encode(each)) for each in labels]))

    async def save_document(self, name: str, value: bytes) -> None:
        """Save a document in the next group commit. The last ``DOCUMENTS`` are kept."""
        await self._submit(SQLiteWrite(documents=[(name, value)]))

    async def load_document(self, name: str) -> bytes | None:
        """Return a document, whichever process wrote it, or None."""
        value = await self._read(_read_value, "SELECT value FROM documents WHERE name = ?", (name,))
        return value if isinstance(value, bytes) else None

    async def _charge(self, charges: Sequence[Charge]) -> Charged:
        """Add to counters in the next group commit, all or none."""
        return cast("Charged", await self._submit(SQLiteWrite(charges=charges)))

    async def secret(self) -> bytes:
        """Return the 32 random bytes that were made with the file."""
        value = await self._read(_read_value, "SELECT value FROM secret", long=True)
        return checked_secret(value, "delete the file of the store")

    async def add_to_books(self, rows: Sequence[Served]) -> None:
        """Append to the books in the next group commit. They keep the last ``BOOK_ROWS`` rows."""
        await self._submit(SQLiteWrite(booked=[(row.at, encode(row)) for row in rows]))

    async def read_books(self, since: float = 0.0) -> AsyncIterator[Served]:
        """Yield the rows of the books in their order, with one short query a batch."""
        last: int | None = 0
        while last is not None:
            read = partial(decode, Served)
            values = last, since, BATCH_ROWS
            page, last = await self._read(_page, read, BOOKS, values, long=True)
            for served in page:
                yield served

    async def _append(self, records: Sequence[EncodedRecord]) -> str:
        return cast("str", await self._submit(SQLiteWrite(records=records)))

    async def _read_log(self, cursor: str) -> tuple[Sequence[LogRow], Mapping[str, VectorRow]]:
        rows, vectors = await self._read(_log_rows, cursor, self._clock())
        opened = ((id, self._decrypted(row)) for id, row in vectors.items())
        return after_cursor(rows, cursor), {id: row for id, row in opened if row is not None}

    async def _label_rows(
        self, after: str, limit: int, domain: str | None
    ) -> Sequence[tuple[str, bytes]]:
        query, chosen = (LABELS, ()) if domain is None else (DOMAIN_LABELS, (domain,))
        rows = await self._read(_fetch, query, (*chosen, row_number(after), limit), long=True)
        return [(row_cursor(seq), value) for seq, value in rows]

    async def _submit(self, write: SQLiteWrite) -> str | Charged:
        """Submit a write; return the log's end or, for charges, their result."""
        if self._writer is None:
            raise StoreError("the store is not open")
        # A charge without a limit corrects an earlier one, and is tried again if it fails. With a
        # time limit it could be written nevertheless, and then be counted twice.
        corrects = write.charges and all(each.most is None for each in write.charges)
        try:
            return await self._writer.submit(write, None if corrects else LONGEST_WRITE_S)
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot write: {error}") from error

    async def _read(
        self, query: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts, long: bool = False
    ) -> T:
        """Run a query on the reader thread. A ``long`` one may take any time."""
        if self._reader is None:
            raise StoreError("the store is not open")
        try:
            result = await self._reader.submit(
                lambda connection: query(connection, *args), None if long else LONGEST_READ_S
            )
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot read: {error}") from error
        return cast("T", result)


# --- the reader thread: short queries, each in a snapshot of its own ---------------------------

BY_EXACT = "SELECT value FROM entries WHERE exact = ? AND (expires IS NULL OR expires > ?)"
BY_ID = "SELECT value FROM entries WHERE id = ? AND (expires IS NULL OR expires > ?)"
VECTORS = """SELECT entries.seq, id, partition, encoder, vector, sketcher, sketch FROM entries
    LEFT JOIN vectors ON vectors.seq = entries.seq
    LEFT JOIN sketches ON sketches.seq = entries.seq
    WHERE (vector IS NOT NULL OR sketch IS NOT NULL) AND (expires IS NULL OR expires > ?)"""
SCAN = f"{VECTORS} AND entries.seq > ? ORDER BY entries.seq LIMIT ?"
PAGE = """SELECT seq, value FROM entries
    WHERE seq > ? AND (expires IS NULL OR expires > ?) ORDER BY seq LIMIT ?"""
BOOKS = "SELECT seq, value FROM books WHERE seq > ? AND at >= ? ORDER BY seq LIMIT ?"
LOG = "SELECT seq, deleted, id FROM log WHERE seq >= ? ORDER BY seq LIMIT ?"
LABELS = "SELECT seq, value FROM labels WHERE seq > ? ORDER BY seq LIMIT ?"
DOMAIN_LABELS = "SELECT seq, value FROM labels WHERE domain = ? AND seq > ? ORDER BY seq LIMIT ?"
TOTALS = "SELECT entries, bytes FROM totals"


def _run_queries(
    connection: sqlite3.Connection, queries: Sequence[Callable[[sqlite3.Connection], object]]
) -> Sequence[object]:
    """Run each query. The result of a query that fails is its exception."""

    def attempt(query: Callable[[sqlite3.Connection], object]) -> object:
        try:
            return query(connection)
        except Exception as error:  # noqa: BLE001 - its submitter raises it, the others go on
            return error

    return [attempt(query) for query in queries]


def _fetch(
    connection: sqlite3.Connection, query: str, values: tuple[object, ...] = ()
) -> list[tuple[Any, ...]]:
    return connection.execute(query, values).fetchall()


def _read_value(connection: sqlite3.Connection, query: str, values: tuple[object, ...] = ()) -> Any:
    """Return the first column of the first row, or None."""
    row = connection.execute(query, values).fetchone()
    return None if row is None else row[0]


def _load(
    connection: sqlite3.Connection,
    read: Callable[[bytes], Entry | None],
    query: str,
    keys: Sequence[str],
    now: float,
) -> list[Entry | None]:
    """Return the live entries under keys, in their order."""
    values = [_read_value(connection, query, (key, now)) for key in keys]
    return [None if value is None else read(value) for value in values]


def _page(
    connection: sqlite3.Connection,
    read: Callable[[bytes], T | None],
    query: str,
    values: tuple[object, ...],
) -> tuple[list[T], int | None]:
    """Return a page of decoded values, and the place of its last row; None after the last page."""
    rows = _fetch(connection, query, values)
    page = [item for _, value in rows if (item := read(value)) is not None]
    return page, rows[-1][0] if rows else None


def _vector_row(row: Sequence[Any]) -> VectorRow | None:
    _, id, partition, encoder, vector, table, sketch = row
    sketched = None if sketch is None else Sketch(table=table, row=sketch)
    return index_row(id, partition, encoder, vector, sketched)


def _log_rows(
    connection: sqlite3.Connection, cursor: str, now: float
) -> tuple[Sequence[LogRow], dict[str, VectorRow]]:
    """Return log rows from the cursor on (inclusive), and the vectors of their live entries."""
    found = connection.execute(LOG, (int(cursor), BATCH_ROWS))
    rows = [LogRow(str(seq), bool(deleted), id) for seq, deleted, id in found]
    vectors = {
        id: vector
        for id in stored_ids(rows[1:])
        for row in connection.execute(f"{VECTORS} AND id = ?", (now, id))
        if (vector := _vector_row(row)) is not None
    }
    return rows, vectors


# --- the writer thread: one transaction for all writes that came together ----------------------

HAS_EXPIRED = "SELECT EXISTS (SELECT 1 FROM entries WHERE expires <= ?)"
PURGE = """DELETE FROM entries WHERE seq IN
    (SELECT seq FROM entries WHERE expires <= ? ORDER BY expires LIMIT ?)"""
COUNTER = "SELECT value FROM counters WHERE name = ?"
PRUNE_LOG = "DELETE FROM log WHERE seq <= (SELECT max(seq) FROM log) - ?"
PRUNE_BOOKS = "DELETE FROM books WHERE seq <= (SELECT max(seq) FROM books) - ?"
PRUNE_LABELS = "DELETE FROM labels WHERE seq <= (SELECT max(seq) FROM labels) - ?"
PRUNE_DOCUMENTS = """DELETE FROM documents WHERE seq IN (SELECT seq FROM documents ORDER BY seq
    LIMIT max((SELECT count(*) FROM documents) - ?, 0))"""

NEWEST = """SELECT max(at) FROM (
    SELECT * FROM (SELECT at FROM books ORDER BY seq DESC LIMIT 1)
    UNION ALL SELECT * FROM (SELECT created FROM entries ORDER BY seq DESC LIMIT 1))"""


def _newest(connection: sqlite3.Connection) -> float | None:
    """Return the time of the newest row, if there is one and it can be read."""
    with contextlib.suppress(sqlite3.Error):
        return cast("float | None", _read_value(connection, NEWEST))
    return None


class SQLiteWrite(NamedTuple):
    """One caller's part of a transaction."""

    touched: Sequence[tuple[float, str]] = ()
    records: Sequence[EncodedRecord] = ()
    booked: Sequence[tuple[float, bytes]] = ()
    labels: Sequence[tuple[str, bytes]] = ()
    documents: Sequence[tuple[str, bytes]] = ()
    charges: Sequence[Charge] = ()


@dataclass(slots=True)
class SQLiteWriter:
    """Commits batches to one connection."""

    connection: sqlite3.Connection
    limits: StoreLimits
    clock: Callable[[], float]
    deleting: DeletionClock

    def commit(self, writes: Sequence[SQLiteWrite]) -> Sequence[str | Charged]:
        """Write all or nothing, and remove expired and surplus entries.

        Returns for each write the log's end, or the result of its charges. Without writes it only
        removes expired entries. If it raises sqlite3.Error, nothing was written.
        """
        if not writes and not _read_value(self.connection, HAS_EXPIRED, (self.deleting(),)):
            return ()
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            self._apply(writes)
            charged = [self._charge(write.charges) if write.charges else None for write in writes]
            (cursor,) = execute("SELECT max(seq) FROM log").fetchone()
            execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                execute("ROLLBACK")
            raise
        return [str(cursor) if each is None else each for each in charged]

    def _charge(self, charges: Sequence[Charge]) -> Charged:
        execute = self.connection.execute
        execute("DELETE FROM counters WHERE expires <= ?", (self.deleting(),))
        values = [_read_value(self.connection, COUNTER, (each.counter,)) for each in charges]
        charged = charge_all(charges, [value or 0 for value in values])
        if charged.added:
            rows = zip(charges, charged.values, strict=True)
            self.connection.executemany(
                "REPLACE INTO counters VALUES (?, ?, ?)",
                [(each.counter, value, each.expires) for each, value in rows if each.amount],
            )
        return charged

    def _apply(self, writes: Sequence[SQLiteWrite]) -> None:
        now = self.clock()
        touched = [touch for write in writes for touch in write.touched]
        executemany = self.connection.executemany
        executemany("UPDATE entries SET used = ? WHERE id = ?", touched)
        self.connection.execute(PURGE, (self.deleting(), BATCH_ROWS))
        for write in writes:
            for record in write.records:
                if isinstance(record, EncodedPut):
                    seq = self._amend(record) if record.amends else self._store(record, now)
                    self._write_vectors(seq, record)
                else:
                    executemany("DELETE FROM entries WHERE id = ?", [(id,) for id in record.ids])
        self._evict()
        self.connection.execute(PRUNE_LOG, (LOG_ROWS,))
        self._write_beside(writes)

    def _write_beside(self, writes: Sequence[SQLiteWrite]) -> None:
        """Write books, labels and documents. Their changes are not in the log."""
        execute, executemany = self.connection.execute, self.connection.executemany
        if booked := [row for write in writes for row in write.booked]:
            executemany("INSERT INTO books (at, value) VALUES (?, ?)", booked)
            execute(PRUNE_BOOKS, (BOOK_ROWS,))
        if labels := [row for write in writes for row in write.labels]:
            executemany("INSERT INTO labels (domain, value) VALUES (?, ?)", labels)
            execute(PRUNE_LABELS, (LABEL_ROWS,))
        if documents := [document for write in writes for document in write.documents]:
            executemany("REPLACE INTO documents (name, value) VALUES (?, ?)", documents)
            execute(PRUNE_DOCUMENTS, (DOCUMENTS,))

    def _store(self, put: EncodedPut, now: float) -> int | None:
        execute = self.connection.execute
        execute("DELETE FROM entries WHERE id = ? OR exact = ?", (put.id, put.exact))
        searched = put.id, put.exact, put.partition, put.scope, put.encoder
        stored = execute(
            """INSERT INTO entries
            (id, exact, partition, scope, encoder, created, expires, used, bytes, value)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (*searched, put.created, put.expires, now, put.size, put.value),
        )
        return stored.lastrowid

    def _amend(self, put: EncodedPut) -> int | None:
        """Replace the entry with the same id; return its place, or None if there is no entry."""
        execute = self.connection.execute
        row = execute("SELECT seq FROM entries WHERE id = ?", (put.id,)).fetchone()
        if row is None:
            return None
        changed = put.encoder, put.size, put.value
        execute("UPDATE entries SET encoder = ?, bytes = ?, value = ? WHERE seq = ?", changed + row)
        execute("DELETE FROM vectors WHERE seq = ?", row)
        execute("DELETE FROM sketches WHERE seq = ?", row)
        return int(row[0])

    def _write_vectors(self, seq: int | None, put: EncodedPut) -> None:
        execute = self.connection.execute
        if seq is not None and put.vector is not None:
            execute("INSERT INTO vectors VALUES (?, ?)", (seq, put.vector))
        if seq is not None and put.sketch is not None:
            row = seq, put.sketch.table, put.sketch.row
            execute("INSERT INTO sketches VALUES (?, ?, ?)", row)

    def _evict(self) -> None:
        """Delete the least recently used entries until both bounds hold, at most ``BATCH_ROWS``."""
        entries, size = self.connection.execute(TOTALS).fetchone()
        limits = self.limits
        most_entries = math.inf if limits.max_entries is None else limits.max_entries
        most_bytes = math.inf if limits.max_bytes is None else limits.max_bytes
        oldest = self.connection.execute(
            "SELECT seq, bytes FROM entries ORDER BY used, seq LIMIT ?", (BATCH_ROWS,)
        )
        doomed = []
        while (entries > most_entries or size > most_bytes) and (row := oldest.fetchone()):
            seq, freed = row
            doomed.append((seq,))
            entries, size = entries - 1, size - freed
        oldest.close()
        self.connection.executemany("DELETE FROM entries WHERE seq = ?", doomed)
