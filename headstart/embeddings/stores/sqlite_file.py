"""The SQLite file: create, recognise, check or refuse it; and the thread that works on it.

Triggers make sure that totals are exact, that a vector is deleted with its entry, and that the log
has each change. These functions block, so they are not called on the event loop.

``BatchWorker`` is the thread. An executor wakes its thread and the loop once for each call. Here
both wake once for all jobs that came together. Under load the jobs share the cost of the two
wake-ups, and a writer gets group commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import sqlite3
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headstart.errors import ConfigError, StoreError
from headstart.observe import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headstart.settings import OnCorrupt


Job = TypeVar("Job")
Result = TypeVar("Result")

BATCH = 256
"""The largest number of jobs in one batch: the first job waits for the last."""


class BatchWorker(Generic[Job, Result]):
    """Runs jobs on its own thread. One event loop submits them.

    ``run`` gets the jobs that came together, in their order, and returns a result or an exception
    for each. With ``tick_s`` it is also called without jobs if none came for that time. Such a call
    has no caller, so its failure is ignored.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Job]], Sequence[Result | Exception]],
        *,
        tick_s: float | None = None,
    ) -> None:
        self._run = run
        self._tick_s = tick_s
        self._jobs: queue.SimpleQueue[tuple[Job, asyncio.Future[Result]] | None] = (
            queue.SimpleQueue()
        )
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        # A daemon: a process that ends without aclose() must not hang, and a commit is atomic.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def submit(self, job: Job) -> Result:
        """Run a job after the earlier ones. A job whose caller is cancelled runs all the same."""
        if self._closing:
            raise StoreError("the store is closed")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put((job, future))
        return await future

    async def aclose(self) -> None:
        """Run all submitted jobs, then end the thread. May be called twice."""
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        await asyncio.shield(self._ended)

    def _serve(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._collect()
            outcomes = self._outcomes([job for job, _ in batch])
            if batch:
                self._deliver([future for _, future in batch], outcomes)
        self._deliver([self._ended], [None])

    def _collect(self) -> tuple[list[tuple[Job, asyncio.Future[Result]]], bool]:
        """Wait for a job or a tick; return the jobs that came, and whether they are the last."""
        batch: list[tuple[Job, asyncio.Future[Result]]] = []
        with contextlib.suppress(queue.Empty):
            item = self._jobs.get(timeout=self._tick_s)
            while item is not None:
                batch.append(item)
                if len(batch) == BATCH:
                    return batch, False
                item = self._jobs.get_nowait()
            return batch, True
        return batch, False

    def _outcomes(self, jobs: Sequence[Job]) -> Sequence[Result | Exception]:
        try:
            return self._run(jobs)
        except Exception as error:  # noqa: BLE001 - each caller gets it; the thread continues
            return [error] * len(jobs)

    def _deliver(self, futures: Sequence[asyncio.Future[Any]], outcomes: Sequence[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self._loop.call_soon_threadsafe(_resolve, futures, outcomes)


def _resolve(futures: Sequence[asyncio.Future[Any]], outcomes: Sequence[Any]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():  # its caller was cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


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


# IF NOT EXISTS: version 1, if it starts while version 2 migrates, may set the version back.
LABELS = (
    # Only the oldest labels leave, and never all of them: no number is used twice.
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
MIGRATIONS = (ENTRIES, LABELS, SKETCHES, COUNTERS)
"""The statements that lead from each schema version to the next."""
SCHEMA_VERSION = len(MIGRATIONS)


class _CorruptFileError(Exception):
    """The file is damaged or is no database: it may be renamed."""


def open_file(
    path: Path, *, on_corrupt: OnCorrupt, busy_s: float, new_secret: bytes | None = None
) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Open or create a store's file; return a connection for writing and one for reading.

    Raises ConfigError if the file is locked, of another application, of a newer schema or not
    writable, and if it is damaged and ``on_corrupt`` is "fail". With "fresh" a damaged file is
    renamed and an empty file is made.
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


def _open_pair(
    path: Path, busy_s: float, new_secret: bytes | None
) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    with contextlib.ExitStack() as opened, _explained(path):
        _create(path)
        writer = opened.enter_context(contextlib.closing(_connect(path, busy_s)))
        _refuse_foreign(writer, path)
        _enter_wal(writer, busy_s)
        _check(writer)
        _migrate(writer, new_secret or secrets.token_bytes(32))
        reader = opened.enter_context(contextlib.closing(_connect(path, busy_s)))
        reader.execute("PRAGMA query_only = ON")
        opened.pop_all()
        return writer, reader


def _create(path: Path) -> None:
    """Make an empty file that only its owner may read. SQLite gives its side files that mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        # Never open an existing file here: closing it would drop SQLite's own locks on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))


def _connect(path: Path, busy_s: float) -> sqlite3.Connection:
    # Each connection serves one thread, but another thread opens it.
    connection = sqlite3.connect(
        path, timeout=busy_s, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


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
    """Switch to WAL, and retry: SQLite does not wait for the lock of another first start here."""
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
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
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
        raise ConfigError(f"cache.store: {path} cannot be used: {error.strerror}") from error
    except sqlite3.Error as error:
        if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _CorruptFileError(str(error)) from error
        if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise ConfigError(
                f"cache.store: {path} is locked by another process; stop it, or name another file"
            ) from error
        raise ConfigError(f"cache.store: {path} cannot be used: {error}") from error


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 if SQLite did not raise the error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
