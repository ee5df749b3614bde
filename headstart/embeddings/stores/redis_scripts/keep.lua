-- KEYS: prefix. ARGV: name and value of a document, and the number of documents to keep.

local names, document = KEYS[1] .. 'documents', KEYS[1] .. 'document:'
redis.call('SET', document .. ARGV[1], ARGV[2])
redis.call('ZADD', names, redis.call('INCR', KEYS[1] .. 'count'), ARGV[1])
for _ = 1, redis.call('ZCARD', names) - tonumber(ARGV[3]) do
    redis.call('UNLINK', document .. redis.call('ZPOPMIN', names)[1])
end
