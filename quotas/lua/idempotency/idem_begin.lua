-- Makes the caller the owner of a request, or says who has it. Called by IdempotencyRecords, again by the same owner too.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 public id of the API key, 2 name of the record, 3 owner, 4 fingerprint of the request, 5 lease ms,
--          6 most records of an API key: beyond them the oldest is forgotten
-- Returns  {'mine', name of what its runs share, when that and the record go, ms, earlier runs, newest first},
--          {'running'}, {'conflict'}: the record is of another request, or {'ended', status, headers, 1 where its answer
--          is kept}
local name, owner, print, now = ARGV[2], ARGV[3], ARGV[4], now_ms()
for _, old in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', now - KEPT_MS, 'LIMIT', 0, 100)) do drop(old) end

local record = record_of(name)
local found = redis.call('HMGET', record, 'print', 'owner', 'lease_ms', 'began_ms', 'status', 'headers')
local began = tonumber(found[4])
if began and began > now - KEPT_MS then
  if found[1] ~= print then return {'conflict'} end
  if found[5] then return {'ended', found[5], found[6], redis.call('HEXISTS', record, 'body')} end
  if found[2] ~= owner and tonumber(found[3]) > now then return {'running'} end
else
  drop(name)
  began = now
  redis.call('ZADD', INDEX, began, name)
  redis.call('PEXPIRE', INDEX, KEPT_MS)
  if redis.call('ZCARD', INDEX) > tonumber(ARGV[6]) then drop(redis.call('ZRANGE', INDEX, 0, 0)[1]) end
end
redis.call('HSET', record, 'print', print, 'owner', owner, 'lease_ms', now + ARGV[5], 'began_ms', began)
redis.call('PEXPIRE', record, began + KEPT_MS - now)
local once, runs = once_of(name, print)
return {'mine', once, began + KEPT_MS, redis.call('ZREVRANGE', runs, 0, -1)}
