-- KEYS: prefix. ARGV: the number of labels to keep, then domain and envelope of each new label.

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
