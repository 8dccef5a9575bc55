-- Forgets a request that has not ended: who sends it again begins it anew. Called by IdempotencyRecords, by its owner.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 public id of the API key, 2 name of the record, 3 owner
-- Returns  1, or 0 where the owner has it no more, or it has ended
local found = redis.call('HMGET', record_of(ARGV[2]), 'owner', 'status')
if found[1] ~= ARGV[3] or found[2] then return 0 end
drop(ARGV[2])
return 1
