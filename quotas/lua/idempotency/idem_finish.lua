-- Keeps the end of a request. Called by IdempotencyRecords, by its owner, maybe twice.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 public id of the API key, 2 name of the record, 3 owner, 4 status, 5 headers as JSON, 6 body, '' where it
--          is not to be kept, 7 most bytes of an API key's bodies: beyond them the oldest are forgotten
-- Returns  1, or 0 where the owner has it no more
local name, body, most = ARGV[2], ARGV[6], tonumber(ARGV[7])
local record = record_of(name)
local found = redis.call('HMGET', record, 'owner', 'began_ms', 'status', 'print')
if found[1] ~= ARGV[3] then return 0 end
if found[3] then return 1 end
redis.call('HSET', record, 'status', ARGV[4], 'headers', ARGV[5])
local _, runs = once_of(name, found[4])
redis.call('DEL', runs) -- none follows
if #body == 0 or #body > most then return 1 end

redis.call('HSET', record, 'body', body)
redis.call('ZADD', ANSWERS, found[2], name)
redis.call('HSET', KEPT, name, #body)
local total = redis.call('HINCRBY', KEPT, 'total', #body)
while total > most do
  drop_answer(redis.call('ZRANGE', ANSWERS, 0, 0)[1])
  total = tonumber(redis.call('HGET', KEPT, 'total'))
end
for _, key in ipairs({INDEX, ANSWERS, KEPT}) do redis.call('PEXPIRE', key, KEPT_MS) end
return 1
