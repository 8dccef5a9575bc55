-- Notes that somebody looks for lapsed leases, and says whether they may be acted on. Called by RedisQuotaStore.
-- If nobody looked for half a lease, the store was away or its clock jumped: holders get one whole lease to renew.
-- KEYS[1]  hash of the watch: seen_ms, grace_ms
-- ARGV     1 lease ms
-- Returns  1 where lapsed leases count, 0 during the grace
local now, lease = now_ms(), tonumber(ARGV[1])
local watch = redis.call('HMGET', KEYS[1], 'seen_ms', 'grace_ms')
local seen, grace = tonumber(watch[1]) or now, tonumber(watch[2]) or 0
if now - seen > lease / 2 then grace = now + lease end
if grace > now + lease then grace = now + lease end -- set before the clock stepped back
redis.call('HSET', KEYS[1], 'seen_ms', now, 'grace_ms', grace)
return now >= grace and 1 or 0
