"""Entries in Redis 8, shared by any number of nodes.

Each write is one script, so nodes agree on what replaced and evicted what. Timeouts are short and
a server that hangs is left alone for a moment: a dead Redis costs a request next to nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, cast

import msgspec
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headstart.embeddings.stores import redis_scripts
from headstart.embeddings.stores.codec import (
    Limits,
    Sealed,
    decode_served,
    encode_label,
    encode_served,
    open_entry,
    seal,
)
from headstart.embeddings.stores.labels import DOCUMENTS, LABEL_ROWS, LabelReader
from headstart.embeddings.stores.log import (
    AT_ONCE,
    BOOK_ROWS,
    LOG_ROWS,
    LogRow,
    after_cursor,
    follow_log,
    stored_ids,
)
from headstart.embeddings.stores.redis_connection import connect
from headstart.embeddings.stores.redis_scripts import (
    PREFIX,
    after_label,
    changes,
    label_cursor,
    log_row,
)
from headstart.errors import ConfigError, StoreError
from headstart.observe import Committed, Observers
from headstart.types import Entry, Logged, Put, Record, StoreStats, VectorRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from headstart.decisions import Label
    from headstart.interfaces import Observer
    from headstart.observe import Served

SCHEMA_VERSION = 1
PAUSE_S = 1.0
"""After a timeout every call fails at once for this long."""


class RedisStore:
    """A Store behind ``url`` (``redis://`` or ``rediss://``). Raises ConfigError if it is no URL.

    The server must not evict keys by itself (``maxmemory-policy noeviction``): ``limits`` do.
    """

    def __init__(
        self,
        url: str,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default
        observer: Observer | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._observer = observer or Observers()
        self._client = connect(url)
        self._open = self._client.register_script(redis_scripts.OPEN)
        self._find = self._client.register_script(redis_scripts.FIND)
        self._append = self._client.register_script(redis_scripts.APPEND)
        self._label = self._client.register_script(redis_scripts.LABEL)
        self._domain_labels = self._client.register_script(redis_scripts.DOMAIN_LABELS)
        self._keep = self._client.register_script(redis_scripts.KEEP)
        self._label_reader = LabelReader(self._read_labels)
        self._paused_until = 0.0

    async def open(self) -> None:
        """Reach the server. Raises StoreError, or ConfigError when it holds a newer schema."""
        try:
            schema, _, _ = await self._begin()
        except StoreError as error:
            if isinstance(error.__cause__, AuthenticationError):
                raise ConfigError(f"cache.store: {error}") from error
            raise StoreError(f"cache.store: {error}; is Redis running there?") from error
        if int(schema) > SCHEMA_VERSION:
            raise ConfigError(
                f"cache.store: the Redis database was written by a newer Headstart (schema"
                f" {int(schema)}, this one knows {SCHEMA_VERSION}); upgrade, or use another one"
            )

    async def aclose(self) -> None:
        """Close the connections; what was appended is with the server."""
        await self._client.aclose()

    async def find(self, exact: str) -> Entry | None:
        """Return the live entry under an exact key."""
        with self._failing_fast():
            value = await self._find(keys=[PREFIX], args=[exact])
        return self._unpack(value)

    async def load(self, ids: Sequence[str]) -> Sequence[Entry | None]:
        """Return entries in the order of ``ids``; None where one is gone."""
        return [self._unpack(value) for (value,) in await self._fields(ids, "value")]

    async def append(self, records: Sequence[Record]) -> str:
        """Write records in one script. Raises StoreError: then they may have been written."""
        now = self._clock()
        sealed = [
            seal(record.entry, record.vector, self._limits) if isinstance(record, Put) else record
            for record in records
        ]
        blobs: list[bytes] = []
        arguments = {
            "now": now,
            "records": [change for record in sealed for change in changes(record, now, blobs)],
            "max_entries": self._limits.max_entries,
            "max_bytes": self._limits.max_bytes,
            "log_rows": LOG_ROWS,
            "at_once": AT_ONCE,
        }
        with self._failing_fast():
            packed = msgspec.msgpack.encode(arguments)
            cursor = await self._append(keys=[PREFIX], args=[packed, *blobs])
        for record in sealed:
            if isinstance(record, Sealed):
                self._observer.notify(Committed(id=record.id, bytes=record.size))
        return str(cursor, "ascii")

    async def cursor(self) -> str:
        """Return the log's end."""
        _, _, cursor = await self._begin()
        return str(cursor, "ascii")

    async def follow(self, after: str, *, poll_s: float = 0.2) -> AsyncIterator[Logged]:
        """Yield records of all nodes after ``after``. Raises StoreError when it is pruned."""
        async for logged in follow_log(after or await self.cursor(), self._read_log, poll_s):
            yield logged

    async def scan(self, batch: int = 1024) -> AsyncIterator[Sequence[VectorRow]]:
        """Yield the vectors of live entries, oldest first, one round trip a batch and its ids."""
        last: float = 0
        while page := await self._page(last, batch):
            last = page[-1][1]
            if rows := await self._vectors([str(id, "utf-8") for id, _ in page]):
                yield rows

    async def entries(self, batch: int = 256) -> AsyncIterator[Sequence[Entry]]:
        """Yield live entries, oldest first, in two round trips a batch."""
        last: float = 0
        while page := await self._page(last, batch):
            last = page[-1][1]
            loaded = await self.load([str(id, "utf-8") for id, _ in page])
            yield [entry for entry in loaded if entry is not None]

    async def touch(self, ids: Sequence[str]) -> None:
        """Mark entries as used now, in one round trip."""
        if ids:
            with self._failing_fast():
                await self._client.zadd(f"{PREFIX}used", dict.fromkeys(ids, self._clock()), xx=True)

    async def stats(self) -> StoreStats:
        """Count entries and their bytes; expired ones count until the next append."""
        with self._failing_fast():
            async with self._client.pipeline() as pipe:
                pipe.zcard(f"{PREFIX}order")
                pipe.get(f"{PREFIX}bytes")
                entries, size = await pipe.execute()
        return StoreStats(entries=entries, bytes=int(size or 0))

    async def secret(self) -> bytes:
        """Return the 32 random bytes of the node that came first."""
        _, secret, _ = await self._begin()
        return secret

    async def book(self, rows: Sequence[Served]) -> None:
        """Append to the books, which keep about the last ``BOOK_ROWS``."""
        with self._failing_fast():
            async with self._client.pipeline() as pipe:
                for row in rows:
                    pipe.xadd(f"{PREFIX}books", {"value": encode_served(row)}, maxlen=BOOK_ROWS)
                await pipe.execute()

    async def label(self, labels: Sequence[Label]) -> None:
        """Append labels in one script; the last ``LABEL_ROWS`` are kept."""
        new = [item for label in labels for item in (label.domain, encode_label(label))]
        with self._failing_fast():
            await self._label(keys=[PREFIX], args=[LABEL_ROWS, *new])

    async def labels(
        self, after: str = "", limit: int = 1000, *, domain: str | None = None
    ) -> Sequence[tuple[str, Label]]:
        """Return labels of all nodes after a cursor, in one round trip."""
        return await self._label_reader.labels(after, limit, domain)

    async def keep(self, name: str, value: bytes) -> None:
        """Keep a document; the last ``DOCUMENTS`` written are kept."""
        with self._failing_fast():
            await self._keep(keys=[PREFIX], args=[name, value, DOCUMENTS])

    async def kept(self, name: str) -> bytes | None:
        """Return a kept document, whichever node wrote it, or None."""
        with self._failing_fast():
            value = await self._client.get(f"{PREFIX}document:{name}")
        return cast("bytes | None", value)

    async def books(self, since: float = 0.0) -> AsyncIterator[Served]:
        """Yield booked rows in the order of booking, one round trip a batch."""
        start = "-"
        while True:
            page = await self._stream("books", start, AT_ONCE)
            if not page:
                return
            for _, fields in page:
                served = decode_served(fields[b"value"])
                if served is not None and served.at >= since:
                    yield served
            start = f"({str(page[-1][0], 'ascii')}"

    async def _begin(self) -> tuple[bytes, bytes, bytes]:
        """Return schema, secret and log end, made now if they are not there."""
        with self._failing_fast():
            found: tuple[bytes, bytes, bytes] = await self._open(
                keys=[PREFIX], args=[SCHEMA_VERSION, secrets.token_bytes(32)]
            )
        return found

    async def _fields(self, ids: Sequence[str], *names: str) -> list[list[bytes | None]]:
        """Return fields of entries in one round trip; all None where an entry is gone."""
        with self._failing_fast():
            async with self._client.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.hmget(f"{PREFIX}entry:{id}", names)
                found: list[list[bytes | None]] = await pipe.execute()
        return found

    async def _page(self, last: float, batch: int) -> Sequence[tuple[bytes, float]]:
        """Return ids after a place in ``order``, with theirs."""
        with self._failing_fast():
            page = await self._client.zrange(
                f"{PREFIX}order", f"({last:.0f}", "+inf",
                byscore=True, offset=0, num=batch, withscores=True,
            )  # fmt: skip
        return cast("Sequence[tuple[bytes, float]]", page)

    async def _stream(
        self, name: str, start: str, count: int
    ) -> Sequence[tuple[bytes, dict[bytes, bytes]]]:
        """Return rows of a stream from a place on."""
        with self._failing_fast():
            page = await self._client.xrange(f"{PREFIX}{name}", start, count=count)
        return cast("Sequence[tuple[bytes, dict[bytes, bytes]]]", page)

    async def _vectors(self, ids: Sequence[str]) -> Sequence[VectorRow]:
        now = self._clock()
        found = await self._fields(ids, "partition", "encoder", "vector", "expires")
        return [
            VectorRow(id=id, partition=partition.decode(), encoder=encoder.decode(), vector=vector)
            for id, (partition, encoder, vector, expires) in zip(ids, found, strict=True)
            if partition is not None and encoder is not None and vector is not None
            if expires is None or float(expires) > now
        ]

    async def _read_labels(
        self, after: str, limit: int, domain: str | None
    ) -> Sequence[tuple[str, bytes]]:
        start = after_label(after)
        if domain is None:
            page = await self._stream("labels", start, limit)
            return [(label_cursor(id), fields[b"value"]) for id, fields in page]
        with self._failing_fast():
            found = await self._domain_labels(keys=[PREFIX], args=[domain, start, limit])
        return [(label_cursor(id), value) for id, (_, _, _, value) in found]

    async def _read_log(self, cursor: str) -> tuple[Sequence[LogRow], Mapping[str, VectorRow]]:
        page = await self._stream("log", cursor, AT_ONCE)
        rows = after_cursor([log_row(*item) for item in page], cursor)
        ids = stored_ids(rows)
        vectors = await self._vectors(ids) if ids else ()
        return rows, {vector.id: vector for vector in vectors}

    def _unpack(self, value: bytes | None) -> Entry | None:
        entry = None if value is None else open_entry(value)
        if entry is None or (entry.expires is not None and entry.expires <= self._clock()):
            return None
        return entry

    @contextlib.contextmanager
    def _failing_fast(self) -> Iterator[None]:
        """Raise StoreError for what redis-py raises, and at once in the pause after a timeout."""
        if time.monotonic() < self._paused_until:
            raise StoreError("Redis did not answer a moment ago")
        try:
            yield
        except RedisTimeoutError as error:
            self._paused_until = time.monotonic() + PAUSE_S
            raise StoreError(f"Redis does not answer: {error}") from error
        except (RedisError, OSError) as error:
            raise StoreError(f"Redis failed: {error}") from error
