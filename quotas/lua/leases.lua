-- Leases of open reservations: renewal, and the search for those that have run out.

-- name: renew
-- Extends the leases of some of a root's open reservations. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 lease ms, 2… reservations
-- Returns  the reservations that are settled or unknown
local leases, ends = KEYS[1] .. 'leases', now_ms() + tonumber(ARGV[1])
local lost = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', leases, ARGV[i]) then
    redis.call('ZADD', leases, ends, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost

-- name: watch
-- Records a search for lapsed leases, and decides whether they may be acted on. After a gap of half a lease (the store was
-- unavailable, or its clock jumped), holders get one whole lease to renew. Called by RedisQuotaStore.
-- KEYS[1]  hash of the watch: seen_ms, grace_ms
-- ARGV     1 lease ms
-- Returns  1, or 0 during the grace period
local now, lease = now_ms(), tonumber(ARGV[1])
local watch = redis.call('HMGET', KEYS[1], 'seen_ms', 'grace_ms')
local seen, grace = tonumber(watch[1]) or now, tonumber(watch[2]) or 0
if now - seen > lease / 2 then grace = now + lease end
if grace > now + lease then grace = now + lease end -- set before the clock stepped back
redis.call('HSET', KEYS[1], 'seen_ms', now, 'grace_ms', grace)
return now >= grace and 1 or 0

-- name: expired
-- Finds reservations whose lease has run out; they stay reserved until they are settled. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 most to return, 2 lease ms, 3 longest possible lease, ms
-- Returns  {open reservations, {{reservation, tenant, model, lane, prompts, expiry of its idempotency key}, …}, number of
--          audit entries waiting}
local prefix, leases, now = KEYS[1], KEYS[1] .. 'leases', now_ms()

-- A lease that ends later than any lease can was dated by a clock that has stepped back since: restart it.
local latest = '(' .. string.format('%.0f', now + ARGV[3])
for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', leases, latest, '+inf', 'LIMIT', 0, ARGV[1])) do
  redis.call('ZADD', leases, now + ARGV[2], reservation)
end

local lapsed = {}
for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local record = redis.call('GET', prefix .. 'reservation:' .. reservation)
  if record and not is_settled(record) then
    local found = unpack_reservation(record)
    lapsed[#lapsed + 1] = {reservation, found[F_TENANT], found[F_MODEL], found[F_LANE], found[F_PROMPTS], found[F_ONCE_UNTIL]}
  else
    redis.call('ZREM', leases, reservation) -- the store lost the record: nothing can be settled
  end
end
return {redis.call('ZCARD', leases), lapsed, redis.call('LLEN', prefix .. 'audit')}

-- name: unlist
-- Removes a root that was not enlisted since a given time. Called by ActiveRoots.
-- KEYS[1]  zset of roots by their last enlistment, ms
-- ARGV     1 root, 2 that time, ms
-- Returns  nothing
local enlisted = redis.call('ZSCORE', KEYS[1], ARGV[1])
if enlisted and tonumber(enlisted) <= tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
