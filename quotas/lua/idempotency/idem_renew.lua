-- Extends the lease of a request that runs. Called by IdempotencyRecords.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 public id of the API key, 2 name of the record, 3 owner, 4 lease ms
-- Returns  1, or 0 where the owner has it no more
local record = record_of(ARGV[2])
if redis.call('HGET', record, 'owner') ~= ARGV[3] then return 0 end
redis.call('HSET', record, 'lease_ms', now_ms() + ARGV[4])
return 1
