-- KEYS: prefix. ARGV: the arguments as MessagePack, then the blobs. Records refer to a blob by
-- its place in ARGV, because cmsgpack cannot read binary strings. Returns the log's end.
--
-- An answer whose call had a lease is written only if no later lease of the same call was taken,
-- and no answer with a later lease was written. Otherwise the log says that the entry was
-- deleted, so that the process that made it drops it.
--
-- Entries expire by the server's clock: a node with a wrong clock cannot expire the entries of
-- other nodes.

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

local function write(entry, record)
    redis.call('HSET', entry, 'exact', record.exact, 'partition', record.partition,
        'encoder', record.encoder, 'value', ARGV[record.value])
    if record.vector then redis.call('HSET', entry, 'vector', ARGV[record.vector]) end
    if record.sketch then
        redis.call('HSET', entry, 'sketcher', record.sketcher, 'sketch', ARGV[record.sketch])
    end
    redis.call('HSET', sizes, record.id, record.size)
    redis.call('INCRBY', bytes, record.size)
    note('stored', record.id)
end

local function amend(record)
    local entry, size = prefix .. 'entry:' .. record.id, redis.call('HGET', sizes, record.id)
    if not size or redis.call('EXISTS', entry) == 0 then return end
    redis.call('HDEL', entry, 'vector', 'sketcher', 'sketch')
    redis.call('DECRBY', bytes, size)
    write(entry, record)
end

local function is_late(record, token)
    local held = redis.call('HGET', prefix .. 'lease:' .. record.lease, 'token')
    if held and tonumber(held) > token then return true end
    local there = redis.call('GET', prefix .. 'exact:' .. record.exact) or ''
    local written = redis.call('HGET', prefix .. 'entry:' .. there, 'token')
    if written and tonumber(written) > token then return true end
    if held == record.token then redis.call('DEL', prefix .. 'lease:' .. record.lease) end
end

local function put(record)
    local id, exact = record.id, prefix .. 'exact:' .. record.exact
    if record.lease and is_late(record, tonumber(record.token)) then return note('deleted', id) end
    remove(redis.call('GET', exact) or '')
    remove(id)
    local entry = prefix .. 'entry:' .. id
    write(entry, record)
    if record.token then redis.call('HSET', entry, 'token', record.token) end
    redis.call('SET', exact, id)
    if record.expires then
        redis.call('HSET', entry, 'expires', record.expires)
        redis.call('PEXPIRE', entry, record.ttl_ms)
        redis.call('PEXPIRE', exact, record.ttl_ms)
        redis.call('ZADD', expires, record.expires, id)
    end
    redis.call('ZADD', order, redis.call('INCR', prefix .. 'count'), id)
    redis.call('ZADD', used, args.now, id)
end

local function over(max, value) return max and value > max end

local ended = redis.call('ZRANGEBYSCORE', expires, '-inf', args.now, 'LIMIT', 0, args.at_once)
for _, id in ipairs(ended) do
    if redis.call('EXISTS', prefix .. 'entry:' .. id) == 1 then break end
    remove(id)
end
for _, record in ipairs(args.records) do
    if record.deleted then remove(record.deleted)
    elseif record.amends then amend(record)
    else put(record) end
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
