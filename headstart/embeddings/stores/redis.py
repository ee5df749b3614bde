"""Entries in Redis (7 or newer) or Valkey, shared by any number of nodes.

Each write is one script of the folder ``redis_scripts``, so nodes agree about replaced and evicted
entries. Timeouts are short, and for one second after a timeout all calls fail at once. So a Redis
that does not answer hardly delays requests.

All keys have the same prefix, so a cluster keeps them on one node:

===============  =======================================================================
entry:<id>       hash: exact, partition, encoder, expires, value, vector, sketcher, sketch, and
                 token of the call's lease; with a TTL
exact:<exact>    id of the entry under an exact key; with the same TTL
order            sorted set of ids by a number that only grows: oldest first
used, expires    sorted sets of ids by Unix seconds
sizes, bytes     hash of bytes by id, and their sum, which also counts down after a TTL
log, books       capped streams
labels           capped stream: domain and envelope of each label
labels:<domain>  stream: the ids in ``labels`` of one domain
document:<name>  string
documents        sorted set of names by a number that only grows: least recently written first
counter:<name>   string: the value of a counter; with a TTL
swapped:<name>   hash: version and value of a document (``interfaces.SwapStore``); with a TTL
clock            stream of one row, whose id is the server's time; made anew for each SWAP
count            the last number in ``order`` or ``documents``
schema, secret   strings, written once
===============  =======================================================================

``RedisExchange`` has the leases and messages of the processes (``interfaces.CallExchange``):

===============  =======================================================================
lease:<name>     hash: owner, token; with a short TTL, which its owner renews
tokens           stream of one row, whose id gives the last token. The id contains the server's
                 time, so tokens grow even after FLUSHALL
inbox:<address>  pub/sub channel of one process
===============  =======================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import pkgutil
import secrets
import time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import msgspec
from redis.exceptions import RedisClusterException, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headstart.embeddings.stores.records import (
    BATCH_ROWS,
    BOOK_ROWS,
    DOCUMENTS,
    LABEL_ROWS,
    LOG_ROWS,
    LogRow,
    RecordStore,
    after_cursor,
    checked_secret,
    decode,
    encode,
    index_row,
    stored_ids,
)
from headstart.embeddings.stores.redis_client import (
    TOO_OLD,
    connect,
    explain,
    is_lasting,
    keeping_cancellations,
)
from headstart.errors import ConfigError, StoreError
from headstart.interfaces import SwapResult
from headstart.observe import Served
from headstart.types import Charge, Charged, Delete, Entry, Lease, Sketch, StoreStats, VectorRow

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Coroutine,
        Iterator,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractContextManager

    from redis.asyncio import Redis

    from headstart.decisions import Label
    from headstart.embeddings.stores.records import EncodedRecord, StoreOptions


def _script(name: str) -> str:
    """Return a script of the folder ``redis_scripts``. Its first lines tell its arguments."""
    return (pkgutil.get_data(__name__, f"redis_scripts/{name}.lua") or b"").decode()


# --- leases and messages of processes -------------------------------------------------------------

LEASE_MS = 3000
"""Milliseconds after which a lease ends, unless it is renewed."""
CHECK_S = 1.0
"""The shortest time between two checks that other processes can reach this one, in seconds."""

FIND_OR_LEASE = _script("find_or_lease")
RENEW = _script("renew")
RELEASE = _script("release")
LEASE_SCRIPTS = (FIND_OR_LEASE, RENEW, RELEASE)


@dataclass(eq=False, repr=False)
class RedisExchange:
    """A CallExchange in the Redis of a store.

    Three fields are methods of the store: ``run`` runs a script, ``unpack`` returns the entry of an
    envelope unless it has expired, and ``failing_fast`` turns errors of redis-py into StoreError.
    """

    client: Redis
    prefix: str
    run: Callable[..., Coroutine[Any, Any, Any]]
    unpack: Callable[[bytes | None, str], Entry | None]
    failing_fast: Callable[[], AbstractContextManager[None]]
    _: KW_ONLY
    in_cluster: bool = False
    _listens: bool = False
    _checked: float = 0.0
    address: str = field(default_factory=lambda: secrets.token_hex(8))

    async def find(self, exact: str, name: str, instead_of: int = 0) -> Entry | Lease | None:
        """Return the entry, or else the lease, in one round trip."""
        address = self.address if self._listens else ""
        value, *held = await self.run(FIND_OR_LEASE, exact, name, address, LEASE_MS, instead_of)
        if value is not None:
            return self.unpack(value, exact)
        if not held or not self._listens:  # no lease, or the owner's messages would not arrive here
            return None
        owner, token = held
        return Lease(name=name, owner=owner.decode(), token=int(token))

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Renew leases in one round trip."""
        pairs = [part for each in leases for part in (each.name, each.token)]
        await self.run(RENEW, LEASE_MS, *pairs)

    def release(self, lease: Lease, *, stored: bool) -> Coroutine[Any, Any, None] | None:
        """End a lease. If the answer was stored, the script that stored it has ended the lease."""
        return None if stored else self.run(RELEASE, lease.name, lease.token)

    async def send(self, address: str, message: bytes) -> bool:
        """Publish a message; return whether a process has received it."""
        with self.failing_fast():
            reached: int = await self.client.publish(self._inbox(address), message)
        return reached > 0

    def _inbox(self, address: str) -> str:
        return f"{self.prefix}inbox:{address}"

    async def messages(self) -> AsyncGenerator[bytes]:
        """Yield the messages over a connection of its own. Raises StoreError when it fails."""
        async with contextlib.aclosing(self.client.pubsub()) as inbox:
            try:
                with self.failing_fast():
                    await inbox.subscribe(self._inbox(self.address))
                while True:
                    with self.failing_fast():
                        message = await inbox.get_message(timeout=None)
                    if message is not None and message["type"] == "subscribe":
                        self._listens = True
                    # An empty message only tests the connection.
                    elif message is not None and message["data"]:
                        yield message["data"]
                        if self.in_cluster:
                            await self._check_inbox()
            finally:
                self._listens = False

    async def _check_inbox(self) -> None:
        """Raise StoreError if senders no longer reach the inbox of this process.

        After a planned failover of a Cluster, our connection stays with the old master, which is
        now a replica. Messages still arrive over it. But senders ask the new master, which knows of
        no subscriber.
        """
        now = asyncio.get_running_loop().time()
        if now - self._checked < CHECK_S:
            return
        self._checked = now
        if not await self.send(self.address, b""):
            raise StoreError("the master of our keys has changed")


# --- the store's keys and scripts -----------------------------------------------------------------

PREFIX = "{headstart}:"
SCHEMA_VERSION = 1
PAUSE_S = 1.0
"""The time after a timeout in which all calls fail at once, in seconds."""

OPEN = _script("open")
FIND = _script("find")
APPEND = _script("append")
LABEL = _script("label")
DOMAIN_LABELS = _script("domain_labels")
KEEP = _script("keep")
CHARGE = _script("charge")
SWAP = _script("swap")


# --- rows of streams and hashes -------------------------------------------------------------------


def changes(record: EncodedRecord, now: float, blobs: list[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records for APPEND of one change, and append their blobs to ``blobs``."""
    if isinstance(record, Delete):
        yield from ({"deleted": id} for id in record.ids)
        return
    change = {
        "id": record.id,
        "exact": record.exact,
        "partition": record.partition,
        "encoder": record.encoder,
        "size": record.size,
        "amends": record.amends,
        "value": _add_blob(blobs, record.value),
    }
    if record.lease is not None:
        change["lease"], change["token"] = record.lease.name, str(record.lease.token)
    if record.vector is not None:
        change["vector"] = _add_blob(blobs, record.vector)
    if record.sketch is not None:
        change["sketcher"] = record.sketch.table
        change["sketch"] = _add_blob(blobs, record.sketch.row)
    if record.expires is not None:
        change["expires"] = record.expires
        # The TTL is relative, because the server's clock may differ. Readers check ``expires``.
        change["ttl_ms"] = _milliseconds(record.expires - now)
    yield change


def _milliseconds(ttl_s: float) -> int:
    """Return a TTL for Redis, which takes none below 1."""
    return max(math.ceil(ttl_s * 1000), 1)


def _add_blob(blobs: list[bytes], blob: bytes) -> int:
    """Return the place of the blob in ARGV; place 1 holds the arguments."""
    blobs.append(blob)
    return len(blobs) + 1


def label_cursor(id: bytes) -> str:
    """Return the cursor of a row of the stream ``labels``. Cursors compare as strings."""
    milliseconds, _, number = str(id, "ascii").partition("-")
    return f"{milliseconds:0>15}-{number:0>10}"


def after_label(cursor: str) -> str:
    """Return the start of a range of the stream ``labels`` that continues after a cursor."""
    if not cursor:
        return "-"
    milliseconds, _, number = cursor.partition("-")
    return f"({milliseconds.lstrip('0') or 0}-{number.lstrip('0') or 0}"


def log_row(cursor: bytes, fields: Mapping[bytes, bytes]) -> LogRow:
    """Return the LogRow of a row of the stream ``log``."""
    field, id = next(iter(fields.items()))
    return LogRow(str(cursor, "ascii"), field == b"deleted", str(id, "utf-8", "replace"))


def _vector_row(id: str, fields: Sequence[bytes | None], now: float) -> VectorRow | None:
    """Return the row of an entry; None if it has expired or this version cannot read it."""
    partition, encoder, vector, table, sketch, expires = fields
    if partition is None or encoder is None:
        return None
    sketched = None
    try:
        if expires is not None and float(expires) <= now:
            return None
        if table is not None and sketch is not None:
            sketched = Sketch(table=table.decode(), row=sketch)
        return index_row(id, partition.decode(), encoder.decode(), vector, sketched)
    except ValueError:
        return None


# --- the store ------------------------------------------------------------------------------------


class _Opened(NamedTuple):
    """The answer of ``OPEN``."""

    schema: bytes
    secret: bytes
    cursor: bytes
    version: bytes


class RedisStore(RecordStore):
    """A Store behind ``url`` (see ``redis_client``). Raises ConfigError for a bad URL.

    The server must not evict keys by itself (``maxmemory-policy noeviction``); the store evicts
    entries by its own limits.
    """

    def __init__(self, url: str, **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self._connected = connect(url)
        self._client = self._connected.redis
        scripts = (OPEN, FIND, APPEND, LABEL, DOMAIN_LABELS, KEEP, CHARGE, SWAP, *LEASE_SCRIPTS)
        self._scripts = {text: self._client.register_script(text) for text in scripts}
        self._paused_until = 0.0

    async def open(self) -> None:
        """Connect. Raises StoreError without an answer, ConfigError if the server is unfit."""
        try:
            opened = await self._open()
        except StoreError as error:
            if is_lasting(error.__cause__):
                raise ConfigError(f"cache.store: {error}") from error
            slow = isinstance(error.__cause__, RedisTimeoutError)
            hint = ", and fast enough? It has half a second, or ?socket_timeout=SECONDS in the URL"
            raise StoreError(
                f"cache.store: {error}; is Redis running there{hint if slow else '?'}"
            ) from error
        except TypeError as error:  # redis-py passes unknown options of the URL to the connection
            raise ConfigError(
                f"cache.store: the Redis URL has an unknown option: {error}"
            ) from None
        if int(opened.schema) > SCHEMA_VERSION:
            raise ConfigError(
                "cache.store: the Redis database was written by a newer Headstart (schema "
                f"{int(opened.schema)}, this one knows {SCHEMA_VERSION}); upgrade, or use another "
                "one"
            )
        if not opened.version:
            raise ConfigError(f"cache.store: {TOO_OLD}")
        await self._check_cipher()

    def exchange(self) -> RedisExchange:
        """Return the leases and messages of the processes that share this store."""
        return RedisExchange(
            self._client,
            PREFIX,
            self._run,
            self._unpack,
            self._failing_fast,
            in_cluster=self._connected.is_cluster,
        )

    async def aclose(self) -> None:
        """Close the connections. Nothing is lost: everything that was appended is on the server."""
        await self._connected.aclose()

    async def find(self, exact: str) -> Entry | None:
        """Return the live entry under an exact key."""
        return self._unpack(await self._run(FIND, exact), exact)

    async def load(self, ids: Sequence[str]) -> Sequence[Entry | None]:
        """Return entries in the order of ``ids``; None for an entry that is gone."""
        found = await self._fields(ids, "value")
        return [
            self._if_in_place(id, self._unpack(value))
            for id, (value,) in zip(ids, found, strict=True)
        ]

    async def cursor(self) -> str:
        """Return the log's end."""
        return str((await self._open()).cursor, "ascii")

    async def scan(self, batch: int = 1024) -> AsyncIterator[Sequence[VectorRow]]:
        """Yield vectors and sketches of live entries, oldest first, two round trips a batch."""
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
        """Count entries and their bytes. Expired entries count until the next append."""
        with self._failing_fast():
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.zcard(f"{PREFIX}order")
                pipe.get(f"{PREFIX}bytes")
                entries, size = await pipe.execute()
        try:
            counted = int(size or 0)
        except ValueError:
            raise StoreError("the number of bytes in Redis is not a number") from None
        return StoreStats(entries=entries, bytes=counted, write_error=self._write_error)

    async def secret(self) -> bytes:
        """Return the 32 random bytes that the first node made."""
        found = await self._open()
        return checked_secret(found.secret, f"delete the key {PREFIX}secret in Redis")

    async def add_to_books(self, rows: Sequence[Served]) -> None:
        """Append to the books, which keep about the last ``BOOK_ROWS`` rows."""
        with self._failing_fast():
            async with self._client.pipeline(transaction=False) as pipe:
                for row in rows:
                    pipe.xadd(f"{PREFIX}books", {"value": encode(row)}, maxlen=BOOK_ROWS)
                await pipe.execute()

    async def add_labels(self, labels: Sequence[Label]) -> None:
        """Append labels in one script. The store keeps the last ``LABEL_ROWS``."""
        new = [item for label in labels for item in (label.domain, encode(label))]
        await self._run(LABEL, LABEL_ROWS, *new)

    async def save_document(self, name: str, value: bytes) -> None:
        """Save a document. The store keeps the last ``DOCUMENTS`` that were written."""
        await self._run(KEEP, name, value, DOCUMENTS)

    async def load_document(self, name: str) -> bytes | None:
        """Return a document, whichever node wrote it, or None."""
        with self._failing_fast():
            value = await self._client.get(f"{PREFIX}document:{name}")
        return cast("bytes | None", value)

    async def _charge(self, charges: Sequence[Charge]) -> Charged:
        """Add to counters in one script, all or none."""
        now = self._clock()
        arguments: list[str | int] = []
        for each in charges:
            most = "" if each.most is None else each.most
            ttl_ms = _milliseconds(each.expires - now)
            arguments += (each.counter, each.amount, ttl_ms, most)
        added, values = await self._run(CHARGE, *arguments)
        if len(values) != len(charges):
            raise StoreError("a counter in Redis is not a number")
        return Charged(added=bool(added), values=tuple(values))

    async def swap(self, name: str, seen: int, value: bytes, ttl_s: float) -> SwapResult:
        """Replace a document if no other process has replaced it; otherwise read it. One script."""
        arguments = name, seen, value, _milliseconds(ttl_s)
        written, version, found, place = await self._run(SWAP, *arguments)
        now = int(place.partition(b"-")[0]) / 1000
        return SwapResult(bool(written), version, value if written else found, now)

    async def read_books(self, since: float = 0.0) -> AsyncIterator[Served]:
        """Yield the rows of the books in their order, one round trip a batch."""
        start = "-"
        while True:
            page = await self._stream("books", start, BATCH_ROWS)
            if not page:
                return
            for _, fields in page:
                served = decode(Served, fields[b"value"])
                if served is not None and served.at >= since:
                    yield served
            start = f"({str(page[-1][0], 'ascii')}"

    async def _append(self, records: Sequence[EncodedRecord]) -> str:
        now = self._clock()
        blobs: list[bytes] = []
        arguments = {
            "now": now,
            "records": [change for record in records for change in changes(record, now, blobs)],
            "max_entries": self._limits.max_entries,
            "max_bytes": self._limits.max_bytes,
            "log_rows": LOG_ROWS,
            "at_once": BATCH_ROWS,
        }
        return str(await self._run(APPEND, msgspec.msgpack.encode(arguments), *blobs), "ascii")

    async def _open(self) -> _Opened:
        """Run ``OPEN``, which writes the keys that are missing."""
        secret = self._new_secret or secrets.token_bytes(32)
        return _Opened(*await self._run(OPEN, SCHEMA_VERSION, secret))

    async def _run(self, script: str, *arguments: str | bytes | int) -> Any:
        """Run a script on the server."""
        with self._failing_fast():
            return await self._scripts[script](keys=[PREFIX], args=arguments)

    async def _fields(self, ids: Sequence[str], *names: str) -> list[list[bytes | None]]:
        """Return fields of entries in one round trip; None where an entry is gone."""
        with self._failing_fast():
            async with self._client.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.hmget(f"{PREFIX}entry:{id}", names)
                found: list[list[bytes | None]] = await pipe.execute()
        return found

    async def _page(self, last: float, batch: int) -> Sequence[tuple[bytes, float]]:
        """Return ids after a place in ``order``, each with its own place."""
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
        names = "partition", "encoder", "vector", "sketcher", "sketch", "expires"
        found = await self._fields(ids, *names)
        return [
            row
            for id, fields in zip(ids, found, strict=True)
            if (row := _vector_row(id, fields, now)) is not None
            if (row := self._decrypted(row)) is not None
        ]

    async def _label_rows(
        self, after: str, limit: int, domain: str | None
    ) -> Sequence[tuple[str, bytes]]:
        start = after_label(after)
        if domain is None:
            page = await self._stream("labels", start, limit)
            return [(label_cursor(id), fields[b"value"]) for id, fields in page]
        found = await self._run(DOMAIN_LABELS, domain, start, limit)
        return [(label_cursor(id), value) for id, (_, _, _, value) in found]

    async def _read_log(self, cursor: str) -> tuple[Sequence[LogRow], Mapping[str, VectorRow]]:
        page = await self._stream("log", cursor, BATCH_ROWS)
        rows = after_cursor([log_row(*item) for item in page], cursor)
        ids = stored_ids(rows)
        vectors = await self._vectors(ids) if ids else ()
        return rows, {vector.id: vector for vector in vectors}

    def _unpack(self, value: bytes | None, exact: str | None = None) -> Entry | None:
        if value is None:
            return None
        entry = self._decode_entry(value) if exact is None else self._entry_under(exact, value)
        if entry is None or (entry.expires is not None and entry.expires <= self._clock()):
            return None
        return entry

    @contextlib.contextmanager
    def _failing_fast(self) -> Iterator[None]:
        """Turn errors of redis-py into StoreError; raise one at once while the store pauses."""
        if time.monotonic() < self._paused_until:
            raise StoreError("Redis did not answer a moment ago")
        try:
            with keeping_cancellations():
                yield
        except RedisTimeoutError as error:
            self._paused_until = time.monotonic() + PAUSE_S
            raise StoreError(explain(error)) from error
        except (RedisError, RedisClusterException, OSError) as error:
            raise StoreError(explain(error)) from error
