-- KEYS: prefix. ARGV: name, the version that was seen, the new value ("": only read), TTL in
-- milliseconds. Returns whether it was written, the version, the value unless it was written,
-- and the server's time in milliseconds, as the id of a row in a stream.
--
-- The time is read from a stream because the Redis user may not be allowed to call TIME. The
-- stream is made again each time, because ids within a stream never go back: after a failover to
-- a server whose clock is behind, they would not show its time.

local document = KEYS[1] .. 'swapped:' .. ARGV[1]
local found = redis.call('HMGET', document, 'version', 'value')
redis.call('DEL', KEYS[1] .. 'clock')
local time = redis.call('XADD', KEYS[1] .. 'clock', '*', 'time', '')
local version, value, written = tonumber(found[1] or 0), found[2] or '', 0
if not version or version % 1 ~= 0 or version < 0 or version >= 2^53 then version = 0 end
if ARGV[3] ~= '' and version == tonumber(ARGV[2]) then
    version, value, written = version + 1, '', 1
    redis.call('HSET', document, 'version', version, 'value', ARGV[3])
    redis.call('PEXPIRE', document, ARGV[4])
end
return {written, version, value, time}
