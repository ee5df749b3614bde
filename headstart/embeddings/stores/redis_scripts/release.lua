-- KEYS: prefix. ARGV: name and token.

local lease = KEYS[1] .. 'lease:' .. ARGV[1]
if redis.call('HGET', lease, 'token') == ARGV[2] then redis.call('DEL', lease) end
