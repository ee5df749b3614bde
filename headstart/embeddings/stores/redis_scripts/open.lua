-- KEYS: prefix. ARGV: schema version, random bytes. Returns schema, secret, the log's end, and
-- the server's version ("" before Redis 7). It writes only missing keys, so it also works on a
-- server that accepts no writes.

local log = KEYS[1] .. 'log'

local function once(name, value)
    local found = redis.call('GET', KEYS[1] .. name)
    if not found then redis.call('SET', KEYS[1] .. name, value) end
    return found or value
end

local schema, secret = once('schema', ARGV[1]), once('secret', ARGV[2])
if redis.call('EXISTS', log) == 0 then redis.call('XADD', log, '*', 'deleted', '') end
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
return {schema, secret, last[1][1], redis.REDIS_VERSION or ''}
