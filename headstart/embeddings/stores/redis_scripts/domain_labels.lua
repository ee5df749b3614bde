-- KEYS: prefix. ARGV: domain, first id and a number. Returns rows of the stream ``labels``.

local labels, found = KEYS[1] .. 'labels', {}
local ids = redis.call('XRANGE', labels .. ':' .. ARGV[1], ARGV[2], '+', 'COUNT', ARGV[3])
for _, id in ipairs(ids) do
    found[#found + 1] = redis.call('XRANGE', labels, id[1], id[1])[1]
end
return found
