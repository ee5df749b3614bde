-- KEYS: prefix. ARGV: counter, amount, TTL in milliseconds and limit ("": none) of each charge.
-- Returns 1 if they were added, and the counters' values. Sums are exact up to 2^53. A counter
-- gets its TTL when it is created, so a node with a wrong clock cannot expire it.

local values, added = {}, 1
for at = 1, #ARGV, 4 do
    local value = tonumber(redis.call('GET', KEYS[1] .. 'counter:' .. ARGV[at]) or 0)
    local amount, most = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 3])
    if most and amount > 0 and value + amount > most then added = 0 end
    values[#values + 1] = value
end
for at = 1, #ARGV * added, 4 do
    local counter = KEYS[1] .. 'counter:' .. ARGV[at]
    if ARGV[at + 1] ~= '0' then
        local value = redis.call('INCRBY', counter, ARGV[at + 1])
        if value < 0 then
            redis.call('SET', counter, 0, 'KEEPTTL')
            value = 0
        end
        values[(at + 3) / 4] = value
        if redis.call('PTTL', counter) < 0 then redis.call('PEXPIRE', counter, ARGV[at + 2]) end
    end
end
return {added, values}
