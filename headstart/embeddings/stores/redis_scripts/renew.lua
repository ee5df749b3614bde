-- KEYS: prefix. ARGV: TTL in ms, then name and token of each lease.

for place = 2, #ARGV, 2 do
    local lease = KEYS[1] .. 'lease:' .. ARGV[place]
    if redis.call('HGET', lease, 'token') == ARGV[place + 1] then
        redis.call('PEXPIRE', lease, ARGV[1])
    end
end
