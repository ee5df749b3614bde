"""What RedisStore runs inside the server, so that nodes which write at once agree.

Keys, all behind the prefix, which keeps them on one node of a cluster:

===============  =======================================================================
entry:<id>       hash: exact, partition, encoder, expires, value, vector; with a TTL
exact:<exact>    id of the entry under an exact key; with the same TTL
order            sorted set of ids by a number that only grows: oldest first
used, expires    sorted sets of ids by Unix seconds
sizes, bytes     hash of bytes by id, and their sum: what left by TTL is still counted off
log, books       capped streams
labels           capped stream: domain and envelope of each label
labels:<domain>  stream: the ids that a domain has in ``labels``
document:<name>  string
documents        sorted set of names by a number that only grows: least recently written first
count            the last number in ``order`` or ``documents``
schema, secret   strings, written once
===============  =======================================================================
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headstart.embeddings.stores.log import LogRow
from headstart.types import Delete

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headstart.embeddings.stores.codec import Sealed

PREFIX = "{headstart}:"

OPEN = """
local schema, secret, log = KEYS[1] .. 'schema', KEYS[1] .. 'secret', KEYS[1] .. 'log'
redis.call('SET', schema, ARGV[1], 'NX')
redis.call('SET', secret, ARGV[2], 'NX')
if redis.call('EXISTS', log) == 0 then redis.call('XADD', log, '*', 'deleted', '') end
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
return {redis.call('GET', schema), redis.call('GET', secret), last[1][1]}
"""
"""KEYS: prefix. ARGV: schema version, random bytes. Returns schema, secret and the log's end."""

FIND = """
local id = redis.call('GET', KEYS[1] .. 'exact:' .. ARGV[1])
return id and redis.call('HGET', KEYS[1] .. 'entry:' .. id, 'value')
"""
"""KEYS: prefix. ARGV: exact key. Returns the entry's envelope or nil."""

APPEND = """
local prefix, args = KEYS[1], cmsgpack.unpack(ARGV[1])
local order, used, expires = prefix .. 'order', prefix .. 'used', prefix .. 'expires'
local sizes, bytes, log = prefix .. 'sizes', prefix .. 'bytes', prefix .. 'log'

local function note(field, id)
    return redis.call('XADD', log, 'MAXLEN', '~', args.log_rows, '*', field, id)
end

local function remove(id)
    local size = redis.call('HGET', sizes, id)
    if not size then return end
    local exact = redis.call('HGET', prefix .. 'entry:' .. id, 'exact')
    if exact then redis.call('DEL', prefix .. 'exact:' .. exact) end
    redis.call('DEL', prefix .. 'entry:' .. id)
    for _, set in ipairs({order, used, expires}) do redis.call('ZREM', set, id) end
    redis.call('HDEL', sizes, id)
    redis.call('DECRBY', bytes, size)
    note('deleted', id)
end

local function put(record)
    local id, exact = record.id, prefix .. 'exact:' .. record.exact
    remove(redis.call('GET', exact) or '')
    remove(id)
    local entry = prefix .. 'entry:' .. id
    redis.call('HSET', entry, 'exact', record.exact, 'partition', record.partition,
        'encoder', record.encoder, 'value', ARGV[record.value])
    if record.vector then redis.call('HSET', entry, 'vector', ARGV[record.vector]) end
    redis.call('SET', exact, id)
    if record.expires then
        redis.call('HSET', entry, 'expires', record.expires)
        redis.call('PEXPIRE', entry, record.ttl_ms)
        redis.call('PEXPIRE', exact, record.ttl_ms)
        redis.call('ZADD', expires, record.expires, id)
    end
    redis.call('ZADD', order, redis.call('INCR', prefix .. 'count'), id)
    redis.call('ZADD', used, args.now, id)
    redis.call('HSET', sizes, id, record.size)
    redis.call('INCRBY', bytes, record.size)
    note('stored', id)
end

local function over(max, value) return max and value > max end

local ended = redis.call('ZRANGEBYSCORE', expires, '-inf', args.now, 'LIMIT', 0, args.at_once)
for _, id in ipairs(ended) do remove(id) end
for _, record in ipairs(args.records) do
    if record.deleted then remove(record.deleted) else put(record) end
end
for _ = 1, args.at_once do
    local entries, size = redis.call('ZCARD', order), tonumber(redis.call('GET', bytes) or 0)
    if not over(args.max_entries, entries) and not over(args.max_bytes, size) then break end
    local oldest = redis.call('ZRANGE', used, 0, 0)[1]
    if not oldest then break end
    remove(oldest)
end
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
return last[1] and last[1][1] or ''
"""
"""KEYS: prefix. ARGV: the arguments as MessagePack, then the blobs, which records name by place
because cmsgpack reads no binary strings. Returns the log's end."""

LABEL = """
local labels = KEYS[1] .. 'labels'
for place = 2, #ARGV, 2 do
    local id = redis.call('XADD', labels, '*', 'domain', ARGV[place], 'value', ARGV[place + 1])
    redis.call('XADD', labels .. ':' .. ARGV[place], id, '', '')
end
local excess = redis.call('XLEN', labels) - tonumber(ARGV[1])
if excess <= 0 then return end
for _, row in ipairs(redis.call('XRANGE', labels, '-', '+', 'COUNT', excess)) do
    local domain = labels .. ':' .. row[2][2]
    redis.call('XDEL', domain, row[1])
    if redis.call('XLEN', domain) == 0 then redis.call('DEL', domain) end
end
redis.call('XTRIM', labels, 'MAXLEN', ARGV[1])
"""
"""KEYS: prefix. ARGV: how many labels to keep, then domain and envelope of each new one."""

DOMAIN_LABELS = """
local labels, found = KEYS[1] .. 'labels', {}
local ids = redis.call('XRANGE', labels .. ':' .. ARGV[1], ARGV[2], '+', 'COUNT', ARGV[3])
for _, id in ipairs(ids) do
    found[#found + 1] = redis.call('XRANGE', labels, id[1], id[1])[1]
end
return found
"""
"""KEYS: prefix. ARGV: domain, first id and how many. Returns rows of the stream ``labels``."""

KEEP = """
local names, document = KEYS[1] .. 'documents', KEYS[1] .. 'document:'
redis.call('SET', document .. ARGV[1], ARGV[2])
redis.call('ZADD', names, redis.call('INCR', KEYS[1] .. 'count'), ARGV[1])
for _ = 1, redis.call('ZCARD', names) - tonumber(ARGV[3]) do
    redis.call('UNLINK', document .. redis.call('ZPOPMIN', names)[1])
end
"""
"""KEYS: prefix. ARGV: a document's name and value, and how many to keep."""


def changes(record: Sealed | Delete, now: float, blobs: list[bytes]) -> Iterator[dict[str, Any]]:
    """Yield what APPEND is to do for a record; adds the blobs that it names by place."""
    if isinstance(record, Delete):
        yield from ({"deleted": id} for id in record.ids)
        return
    change = {
        "id": record.id,
        "exact": record.exact,
        "partition": record.partition,
        "encoder": record.encoder,
        "size": record.size,
        "value": _add_blob(blobs, record.value),
    }
    if record.vector is not None:
        change["vector"] = _add_blob(blobs, record.vector)
    if record.expires is not None:
        change["expires"] = record.expires
        # Relative, so that the server's clock does not matter; readers check ``expires``.
        change["ttl_ms"] = max(math.ceil((record.expires - now) * 1000), 1)
    yield change


def _add_blob(blobs: list[bytes], blob: bytes) -> int:
    """Return the blob's place in ARGV, which begins at 1 with the arguments."""
    blobs.append(blob)
    return len(blobs) + 1


def label_cursor(id: bytes) -> str:
    """Return the cursor of a row of the stream ``labels``; like ids, cursors compare as strings."""
    milliseconds, _, number = str(id, "ascii").partition("-")
    return f"{milliseconds:0>15}-{number:0>10}"


def after_label(cursor: str) -> str:
    """Return where a range of the stream ``labels`` begins that goes on after a cursor."""
    if not cursor:
        return "-"
    milliseconds, _, number = cursor.partition("-")
    return f"({milliseconds.lstrip('0') or 0}-{number.lstrip('0') or 0}"


def log_row(cursor: bytes, fields: Mapping[bytes, bytes]) -> LogRow:
    """Return what a row of the stream ``log`` says."""
    ((field, id),) = fields.items()
    return LogRow(str(cursor, "ascii"), field == b"deleted", str(id, "utf-8"))
