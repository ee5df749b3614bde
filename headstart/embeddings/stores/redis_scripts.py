"""What RedisStore runs inside the server, so that nodes which write at once agree.

Keys, all behind the prefix, which keeps them on one node of a cluster:

===============  =======================================================================
entry:<id>       hash: exact, partition, encoder, expires, value, vector; with a TTL
exact:<exact>    id of the entry under an exact key; with the same TTL
order            sorted set of ids by a number that only grows: oldest first
used, expires    sorted sets of ids by Unix seconds
sizes, bytes     hash of bytes by id, and their sum: what left by TTL is still counted off
log, books       capped streams
count            the last number in ``order``
schema, secret   strings, written once
===============  =======================================================================
"""

from __future__ import annotations

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
