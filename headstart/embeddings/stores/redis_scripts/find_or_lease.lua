-- KEYS: prefix. ARGV: exact key, name, address ("": take no lease), TTL in ms, and the token of
-- a lease to replace, or 0. Returns the envelope of the entry. Without an entry it returns nil,
-- the owner and the token of the lease. It returns only nil if there is no lease and none was
-- taken: the caller wanted none, or the server accepts no writes now.

local id = redis.call('GET', KEYS[1] .. 'exact:' .. ARGV[1])
local value = id and redis.call('HGET', KEYS[1] .. 'entry:' .. id, 'value')
if value then return {value} end
local lease = KEYS[1] .. 'lease:' .. ARGV[2]
local held = redis.call('HMGET', lease, 'owner', 'token')
if held[1] and held[2] ~= ARGV[5] then return {false, held[1], held[2]} end
if ARGV[3] == '' then return {false} end
local place = redis.pcall('XADD', KEYS[1] .. 'tokens', 'MAXLEN', 1, '*', '', '')
if place.err then return {false} end
local ms, number = string.match(place, '(%d+)-(%d+)')
local token = string.format('%.0f', ms * 1024 + number)
redis.call('HSET', lease, 'owner', ARGV[3], 'token', token)
redis.call('PEXPIRE', lease, ARGV[4])
return {false, ARGV[3], token}
