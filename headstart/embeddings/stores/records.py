"""The common part of all stores: encoded values, the log that readers follow, and the labels.

A value is stored in a versioned envelope: one version byte, then MessagePack. A store may contain
values of a newer version, or damaged ones. Decoding skips them: after a rollback, or for a damaged
row, a lookup is a miss and nothing crashes. With a cipher, entries, vectors and sketches are
encrypted in an envelope of another version (``encryption.py``), and the names of their encoders
begin with ``SEALED``.

The log has one row for each entry that was stored or removed. Rows have only ids; a reader gets the
vectors in addition. The log keeps ``LOG_ROWS`` rows and is never empty, so a cursor always names a
row. A reader reads from its cursor on, including that row. If the row is missing, the log no longer
reaches back to the cursor, and the reader has to start over.

The labels are an append-only sequence, which may be empty. The store deletes the oldest ones
without a trace, so a late reader learns from the labels that still exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypedDict, TypeVar

import anyio
import msgspec

from headstart.decisions import Label
from headstart.errors import ConfigError, StoreError
from headstart.observe import Committed, Observer, Served, logger
from headstart.types import Charged, Delete, Entry, Logged, Put, RawResponse, Sketch, T, VectorRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from headstart.types import Charge, Lease, Record

Job = TypeVar("Job")
Result = TypeVar("Result")

VERSION = b"\x01"
SEALED_VERSION = b"\x02"
"""The first byte of an encrypted value."""
SEALED = "sealed:"
"""The prefix of the name of an encoder, or of a table of sketches, if its rows are encrypted."""
ENCRYPTION = "encryption"
"""The name of the document with the ids of the keys with which a store was written."""
MOST_KEYS = 16
"""The most ids of keys in that document."""
LABEL_ROWS = 200_000
"""The number of labels that a store keeps: about 100 MB, in memory, on disk or in Redis."""
DOCUMENTS = 100_000
"""The number of documents that a store keeps. The least recently written are evicted first."""
LOG_ROWS = 65_536
"""The number of log rows that a store keeps. A reader that polls every 0.2 s loses rows only above
300,000 writes a second."""
BOOK_ROWS = 200_000
"""The number of rows of the books that a store keeps: about 40 MB."""
BATCH_ROWS = 1024
"""The most entries that one commit removes, and the most rows of one read, so that neither takes
long."""
LEAP_S = 3600.0
"""If the clock advances by this much more than the monotonic clock, somebody has set it."""
SETTLES_S = 3600.0
"""The number of seconds after which a clock that was set ahead is believed."""


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a store; None: no bound. The least recently used are evicted first."""

    ttl_s: float | None = None
    """The lifetime, from ``created`` on, of an entry that has no ``expires`` of its own."""
    max_entries: int | None = None
    max_bytes: int | None = None
    """The bytes of encoded entries and vectors, without the store's own overhead."""


# --- encoded values ------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Entry, Served, Label)
}


class EncodedPut(msgspec.Struct, frozen=True, gc=False):
    """A Put in the form that stores write: the fields that they search, and the envelope."""

    id: str
    exact: str
    partition: str
    """The digests of the entry's partitions, with a space between them."""
    scope: str
    encoder: str
    created: float
    expires: float | None
    value: bytes
    vector: bytes | None
    sketch: Sketch | None
    amends: bool
    lease: Lease | None
    size: int
    """The bytes that count against ``max_bytes``."""

    def row(self) -> VectorRow | None:
        """Return the row for an index, or None if there is neither a vector nor a sketch."""
        return index_row(self.id, self.partition, self.encoder, self.vector, self.sketch)


def index_row(
    id: str, partition: object, encoder: object, vector: object, sketch: Sketch | None
) -> VectorRow | None:
    """Return the row of an entry for an index, or None if it has neither vector nor sketch.

    Also None if a column has a wrong type, which is possible in an edited file of SQLite.
    """
    row: object = None if sketch is None else sketch.row
    if vector is None and row is None:
        return None
    if not (isinstance(vector, bytes | None) and isinstance(row, bytes | None)):
        return None
    if not (isinstance(partition, str) and isinstance(encoder, str)):
        return None
    partitions = tuple(partition.split(" "))
    return VectorRow(id=id, partitions=partitions, encoder=encoder, vector=vector, sketch=sketch)


def _size(value: bytes, vector: bytes | None, sketch: Sketch | None) -> int:
    return len(value) + len(vector or b"") + (0 if sketch is None else len(sketch.row))


EncodedRecord: TypeAlias = EncodedPut | Delete


class StoreCipher(Protocol):
    """Encrypts (seals) and decrypts (opens) values: ``encryption.Cipher``."""

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the keys. The first key encrypts; each value names the key that opens it."""

    def seal(self, value: bytes, place: bytes) -> bytes:
        """Return the encrypted envelope of a value. ``place``: its kind and owner."""

    def open(self, value: bytes, place: bytes) -> bytes | None:
        """Return the value of an encrypted envelope; None if no key fits or ``place`` differs."""


def _encrypted(put: EncodedPut, cipher: StoreCipher) -> EncodedPut:
    """Return a Put whose value, vector and sketch are encrypted."""
    vector, sketch, id = put.vector, put.sketch, put.id.encode()
    value = cipher.seal(put.value, b"entry")
    if vector is not None:
        vector = cipher.seal(vector, b"vector " + id)
    if sketch is not None:
        row = cipher.seal(sketch.row, b"sketch " + id)
        sketch = msgspec.structs.replace(sketch, table=SEALED + sketch.table, row=row)
    return msgspec.structs.replace(
        put,
        value=value,
        encoder=put.encoder if vector is None else SEALED + put.encoder,
        vector=vector,
        sketch=sketch,
        size=_size(value, vector, sketch),
    )


def encode_put(put: Put, limits: StoreLimits) -> EncodedPut:
    """Encode an entry to store. If it has no ``expires``, it expires after ``limits.ttl_s``.

    Raises StoreError if a value cannot be encoded, or if the entry alone exceeds ``max_bytes``.
    """
    entry, known = put.entry, put.value
    if entry.expires is None and limits.ttl_s is not None:
        entry = msgspec.structs.replace(entry, expires=entry.created + limits.ttl_s)
        known = None
    value = encode(entry) if known is None else VERSION + known
    size = _size(value, put.vector, put.sketch)
    if limits.max_bytes is not None and size > limits.max_bytes:
        raise StoreError(f"an entry of {size} bytes exceeds cache.max_bytes")
    return EncodedPut(
        id=entry.id,
        exact=entry.key.exact,
        partition=sys.intern(" ".join(entry.key.partitions)),
        scope=sys.intern(entry.key.scope),
        encoder=sys.intern(entry.encoder),
        created=entry.created,
        expires=entry.expires,
        value=value,
        vector=put.vector,
        sketch=put.sketch,
        amends=put.amends,
        lease=put.lease,
        size=size,
    )


def encode(value: Entry | Served | Label) -> bytes:
    """Return the envelope of a value. Raises StoreError if it cannot be encoded."""
    try:
        return VERSION + _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(f"a value cannot be stored: {type(error).__name__}") from error


def decode(kind: type[T], value: object) -> T | None:
    """Return the value of an envelope; None if this version cannot read it.

    ``value`` may be of any type: in an edited file of SQLite it may be a number or a text.
    """
    if not isinstance(value, bytes) or value[:1] != VERSION:
        return None
    try:
        decoded: T = _decoders[kind].decode(memoryview(value)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return decoded


_FRAMING = frozenset((b"connection", b"content-length", b"set-cookie", b"transfer-encoding"))
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")


def can_be_sent(entry: Entry) -> bool:
    """Tell whether an answer can be sent over HTTP. Another program may have written the entry."""
    if not (math.isfinite(entry.created) and math.isfinite(entry.expires or 0.0)):
        return False
    answer = entry.answer
    if not isinstance(answer, RawResponse):
        return True
    return (
        200 <= answer.status < 300
        and not (answer.body and answer.status in (204, 205))
        and all(
            name.lower() not in _FRAMING and _HEADER.fullmatch(name + b":" + value)
            for name, value in answer.headers
        )
    )


# --- the log -------------------------------------------------------------------------------


class LogRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the log: an entry was stored or removed."""

    cursor: str
    deleted: bool
    id: str


def stored_ids(rows: Sequence[LogRow]) -> tuple[str, ...]:
    """Return the ids of the entries that were stored, according to the rows."""
    return tuple(row.id for row in rows if not row.deleted)


def after_cursor(rows: Sequence[LogRow], cursor: str) -> Sequence[LogRow]:
    """Drop the cursor's own row, which must come first. Raises StoreError if it is missing."""
    if not rows or rows[0].cursor != cursor:
        raise StoreError("the store's log no longer reaches back to this cursor")
    return rows[1:]


def _logged(rows: Sequence[LogRow], vectors: Mapping[str, VectorRow]) -> Iterator[Logged]:
    """Yield the changes. Adjacent deletions become one Delete; an entry without row is skipped."""
    for deleted, run in groupby(rows, key=lambda row: row.deleted):
        if deleted:
            gone = tuple(run)
            yield Logged(cursor=gone[-1].cursor, record=Delete(ids=tuple(row.id for row in gone)))
        else:
            for row in run:
                if (vector := vectors.get(row.id)) is not None:
                    yield Logged(cursor=row.cursor, record=vector)


# --- the labels ----------------------------------------------------------------------------


def row_cursor(number: int) -> str:
    """Return the cursor of a row. Cursors compare as strings in the order of the row numbers."""
    return f"{number:015}"


def row_number(cursor: str) -> int:
    """Return the row of a cursor, 0 for ``""``. Raises StoreError if the cursor is not valid."""
    try:
        return int(cursor or 0)
    except ValueError as error:
        raise StoreError("this is not a cursor of the store's labels") from error


# --- the thread of a store -------------------------------------------------------------------

BATCH_JOBS = 256
"""The most jobs in one batch. The first job has its result when the last one is done."""
POLL_S = 0.005
"""Seconds between two checks whether the thread has ended."""
PAUSE_S = 10.0
"""After a batch took longer than the limit of a job, jobs with a limit fail at once for this many
seconds."""


class BatchWorker(Generic[Job, Result]):
    """Runs jobs on its own thread. One event loop submits them.

    ``run`` gets all jobs that have come in the meantime, in their order, and returns a result or an
    exception for each. So under load many jobs share two wake-ups, one of the thread and one of the
    loop, and a writer gets group commits.

    With ``tick_s``, ``run`` is also called without jobs if no job came for that time. Errors of
    such a call are ignored, because nobody waits for it. The thread calls ``end`` when it ends.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Job]], Sequence[Result | Exception]],
        *,
        end: Callable[[], object] = object,
        tick_s: float | None = None,
    ) -> None:
        self._run = run
        self._end = end
        self._tick_s = tick_s
        self._jobs = queue.SimpleQueue[_Submitted[Job, Result] | None]()
        self._running: list[_Submitted[Job, Result]] | None = None
        """The batch that runs now."""
        self._given_up: list[_Submitted[Job, Result]] | None = None
        """The last batch that ran for longer than the limit of a job."""
        self._paused_until = 0.0
        self._loop = asyncio.get_running_loop()
        self._closing = False
        # A daemon: a process that ends without aclose() must not hang, and a commit is atomic.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def submit(self, job: Job, longest_s: float | None = None) -> Result:
        """Run a job after the earlier ones, even if its caller is cancelled meanwhile.

        Raises StoreError if there is no result after ``longest_s``. A job that has not begun by
        then is not run.
        """
        now = time.monotonic()
        if self._closing:
            raise StoreError("the store is closed")
        hangs = self._running is not None and self._running is self._given_up
        if longest_s is not None and (hangs or now < self._paused_until):
            raise StoreError("the store does not answer")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put(_Submitted(job, future, now + (longest_s or math.inf)))
        try:
            async with asyncio.timeout(longest_s):
                return await future
        except TimeoutError:
            # None if the thread is idle: the event loop, or the whole process, stood still.
            self._given_up = self._running
            raise StoreError(f"the store did not answer in {longest_s:g} s") from None

    async def aclose(self, longest_s: float | None = None) -> bool:
        """Run all submitted jobs, then end the thread. May be called twice.

        Returns whether it has ended. A thread that hangs for ``longest_s`` is left behind.
        """
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        # The loop that submitted the jobs may have ended, so no future of it tells the end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while self._thread.is_alive():  # noqa: ASYNC110 - a thread ends
                    await asyncio.sleep(POLL_S)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._collect()
            batch = [each for each in batch if time.monotonic() < each.until]
            self._running = batch
            outcomes = self._outcomes([each.job for each in batch])
            self._running = None
            if self._given_up is batch:
                self._paused_until = time.monotonic() + PAUSE_S
            if batch:
                self._deliver([each.answer for each in batch], outcomes)
        with contextlib.suppress(Exception):
            self._end()

    def _collect(self) -> tuple[list[_Submitted[Job, Result]], bool]:
        """Wait for a job or a tick; return the jobs that came, and whether they are the last."""
        batch: list[_Submitted[Job, Result]] = []
        with contextlib.suppress(queue.Empty):
            item = self._jobs.get(timeout=self._tick_s)
            while item is not None:
                batch.append(item)
                if len(batch) == BATCH_JOBS:
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
            self._loop.call_soon_threadsafe(self._resolve, futures, outcomes)

    def _resolve(self, futures: Sequence[asyncio.Future[Any]], outcomes: Sequence[Any]) -> None:
        for future, outcome in zip(futures, outcomes, strict=True):
            if not future.done():  # a cancelled caller's future is done
                failed = isinstance(outcome, Exception)
                (future.set_exception if failed else future.set_result)(outcome)


@dataclass(slots=True)
class _Submitted(Generic[Job, Result]):
    """A job, the place for its result, and the time after which it is not begun any more."""

    job: Job
    answer: asyncio.Future[Result]
    until: float


# --- the base of the stores ----------------------------------------------------------------


@dataclass(slots=True)
class DeletionClock:
    """Returns the Unix time up to which expired rows may be deleted from the store.

    A clock that is set far ahead for a moment must not empty a store. So after a leap of the clock
    no rows are deleted for ``SETTLES_S``, or until the clock is set back. Lookups do not use this
    time: they use the clock itself.

    ``last`` is the time of the store's newest row. If the clock is much later at the start, the
    process was down for long, or the clock is wrong. Then for ``SETTLES_S`` only those rows are
    deleted that had expired at ``last``.
    """

    clock: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    last: float | None = None
    _ahead: float = 0.0
    _settles: float = -math.inf
    _believed: float = -math.inf
    """The time that is returned until the clock is believed again."""

    def __post_init__(self) -> None:
        """Read the clock for the first time."""
        now, at = self.clock(), self.monotonic()
        self._ahead = now - at
        if self.last is not None and now - self.last >= LEAP_S:
            self._settles, self._believed = at + SETTLES_S, self.last

    def __call__(self) -> float:
        """Read the clock; return its time, or an earlier one while it is not believed."""
        now, at = self.clock(), self.monotonic()
        leap = now - at - self._ahead
        self._ahead = now - at
        if abs(leap) >= LEAP_S:
            self._settles = at + SETTLES_S if leap > 0 else -math.inf
        return now if at >= self._settles else self._believed


class StoreOptions(TypedDict, total=False):
    """The arguments that all stores take."""

    limits: StoreLimits | None
    clock: Callable[[], float]
    """Returns Unix seconds; default: the system's clock."""
    observer: Observer | None
    new_secret: bytes | None
    """The secret of a store that has none yet; None: a random one."""
    cipher: StoreCipher | None
    """Encrypts entries; None: they are stored as they are."""


SHORTEST_SECRET = 16
"""The fewest bytes of a store's secret, which must be random: it hides the callers' credentials."""


def checked_secret(value: object, place: str) -> bytes:
    """Return the secret of a store. Raises StoreError if it was replaced by a weak one."""
    if isinstance(value, bytes) and len(value) >= SHORTEST_SECRET:
        return value
    raise StoreError(
        f"cache.store: the secret of the store is not {SHORTEST_SECRET} or more random bytes, so"
        f" anyone could guess it: {place}, and sharing starts over"
    )


def charge_all(charges: Sequence[Charge], values: Sequence[int]) -> Charged:
    """Return the counters' values after the charges; ``values`` if a counter would pass its limit.

    A counter never falls below 0. A charge may give back an amount that its counter no longer has,
    because the store lost the counter meanwhile.
    """
    after = tuple(
        [max(value + each.amount, 0) for each, value in zip(charges, values, strict=True)]
    )
    for each, value in zip(charges, after, strict=True):
        if each.most is not None and each.amount > 0 and value > each.most:
            return Charged(added=False, values=tuple(values))
    return Charged(added=True, values=after)


class RecordStore(ABC):
    """The part of a store that is common to SQLite, Redis and memory."""

    def __init__(
        self,
        *,
        limits: StoreLimits | None = None,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default
        observer: Observer | None = None,
        new_secret: bytes | None = None,
        cipher: StoreCipher | None = None,
    ) -> None:
        self._new_secret = new_secret
        self._cipher = cipher
        self._logged_unreadable = False
        self._limits = limits or StoreLimits()
        self._clock = clock
        self._observer = observer
        self._write_errors: dict[str, str] = {}
        """The errors of the last write of entries and of counters. No item: no error."""
        self._labels_asked: tuple[str, str | None] = ("", None)
        self._labels_skipped = ""
        """The cursor after unreadable labels at the end of the last read."""

    async def append(self, records: Sequence[Record]) -> str:
        """Write records. Raises StoreError if they cannot be encoded or written."""
        encoded: list[EncodedRecord] = []
        for record in records:
            if isinstance(record, Put):
                put = encode_put(record, self._limits)
                encoded.append(put if self._cipher is None else _encrypted(put, self._cipher))
            else:
                encoded.append(record)
        try:
            cursor = await self._append(encoded)
        except StoreError as error:
            self._write_errors["entries"] = str(error)
            raise
        self._write_errors.pop("entries", None)
        observer = self._observer
        for each in encoded:
            if observer is not None and isinstance(each, EncodedPut) and not each.amends:
                observer.notify(Committed(id=each.id, bytes=each.size))
        return cursor

    async def charge(self, charges: Sequence[Charge]) -> Charged:
        """Add to counters, all or none. Raises StoreError."""
        try:
            charged = await self._charge(charges)
        except StoreError as error:
            self._write_errors["counters"] = str(error)
            raise
        self._write_errors.pop("counters", None)
        return charged

    @abstractmethod
    async def _charge(self, charges: Sequence[Charge]) -> Charged:
        """Add to counters."""

    @property
    def _write_error(self) -> str:
        """An error of the last writes of entries and of counters; "" if both succeeded."""
        return next(iter(self._write_errors.values()), "")

    def _decode_entry(self, value: object) -> Entry | None:
        """Return the entry of an envelope; None if it cannot be read. Any thread may call it."""
        if isinstance(value, bytes) and value[:1] == SEALED_VERSION:
            opened = None if self._cipher is None else self._cipher.open(value, b"entry")
            if opened is None:
                self._log_unreadable()
                return None
            value = opened
        entry = decode(Entry, value)
        return entry if entry is not None and can_be_sent(entry) else None

    def _entry_under(self, exact: str, value: bytes) -> Entry | None:
        """Return the entry of an exact key; None if an entry of another key was put there."""
        entry = self._decode_entry(value)
        moved = entry is not None and self._cipher is not None and entry.key.exact != exact
        return None if moved else entry

    def _if_in_place(self, id: str, entry: Entry | None) -> Entry | None:
        """Return the entry of an id; None if an entry of another id was put there."""
        moved = entry is not None and self._cipher is not None and entry.id != id
        return None if moved else entry

    def _decrypted(self, row: VectorRow) -> VectorRow | None:
        """Return a row with its vector and sketch decrypted; None if neither can be read."""
        cipher, id = self._cipher, row.id.encode()
        vector, sketch, encoder = row.vector, row.sketch, row.encoder
        if encoder.startswith(SEALED) and vector is not None:
            encoder = encoder.removeprefix(SEALED)
            vector = None if cipher is None else cipher.open(vector, b"vector " + id)
        if sketch is not None and sketch.table.startswith(SEALED):
            opened = None if cipher is None else cipher.open(sketch.row, b"sketch " + id)
            table = sketch.table.removeprefix(SEALED)
            sketch = None if opened is None else Sketch(table=table, row=opened)
        if vector is row.vector and sketch is row.sketch:
            return row
        if vector is None and sketch is None:
            return None
        return msgspec.structs.replace(row, encoder=encoder, vector=vector, sketch=sketch)

    def _log_unreadable(self) -> None:
        if not self._logged_unreadable:
            self._logged_unreadable = True
            logger.warning(
                "the store has entries that were encrypted with another key: they are misses; to "
                "read them, name their key in cache.encryption_key_env after the new one"
            )

    async def _check_cipher(self) -> None:
        """Save the ids of the keys in the store. Raises ConfigError if a key is missing."""
        try:
            kept = await self.load_document(ENCRYPTION)
            ids = () if kept is None else msgspec.json.decode(kept, type=tuple[str, ...])
            cipher = self._cipher
            if cipher is None and ids:
                raise ConfigError(
                    "cache.encryption_key_env: the entries of this store are encrypted: name the "
                    f"variable with their key (its id is {ids[0]})"
                )
            if cipher is not None:
                known = (*cipher.key_ids, *(id for id in ids if id not in cipher.key_ids))
                if known != ids:
                    await self.save_document(ENCRYPTION, msgspec.json.encode(known[:MOST_KEYS]))
        except (StoreError, msgspec.DecodeError):
            return  # lookups report the failure

    @abstractmethod
    async def save_document(self, name: str, value: bytes) -> None:
        """Save a document."""

    @abstractmethod
    async def load_document(self, name: str) -> bytes | None:
        """Return a document, or None."""

    async def follow(self, after: str, *, poll_s: float = 0.2) -> AsyncIterator[Logged]:
        """Yield the changes by all processes after a cursor. Raises StoreError if it is lost."""
        cursor = after or await self.cursor()
        while True:
            rows, vectors = await self._read_log(cursor)
            for logged in _logged(rows, vectors):
                yield logged
            if rows:
                cursor = rows[-1].cursor
            else:
                await anyio.sleep(poll_s)

    async def read_labels(
        self, after: str = "", limit: int = 1000, *, domain: str | None = None
    ) -> Sequence[tuple[str, Label]]:
        """Return labels of all processes after a cursor. Raises StoreError if it is not valid.

        Labels that this version cannot decode are skipped. An empty result means none yet.
        """
        asked = (after, domain)
        cursor = self._labels_skipped if asked == self._labels_asked else after
        while rows := await self._label_rows(cursor, limit, domain):
            cursor = rows[-1][0]
            decoded = ((place, decode(Label, value)) for place, value in rows)
            if labels := [(place, label) for place, label in decoded if label is not None]:
                return labels
        # Unreadable labels at the end, of a newer version, must not be read again with each poll.
        self._labels_asked, self._labels_skipped = asked, cursor
        return []

    @abstractmethod
    async def cursor(self) -> str:
        """Return the log's end."""

    @abstractmethod
    async def _append(self, records: Sequence[EncodedRecord]) -> str:
        """Write all records or none. Returns the log's end."""

    @abstractmethod
    async def _read_log(self, cursor: str) -> tuple[Sequence[LogRow], Mapping[str, VectorRow]]:
        """Return log rows from a cursor on, and the vectors of stored entries that are live."""

    @abstractmethod
    async def _label_rows(
        self, after: str, limit: int, domain: str | None
    ) -> Sequence[tuple[str, bytes]]:
        """Return the cursors and envelopes of labels after a cursor."""
