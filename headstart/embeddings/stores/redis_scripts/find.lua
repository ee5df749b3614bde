-- KEYS: prefix. ARGV: exact key. Returns the entry's envelope or nil.

local id = redis.call('GET', KEYS[1] .. 'exact:' .. ARGV[1])
return id and redis.call('HGET', KEYS[1] .. 'entry:' .. id, 'value')
