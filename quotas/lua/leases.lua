-- Leases of open reservations: renewal, and the search for those that have run out.

-- name: renew
-- Extends the leases of some of a root's reservations, ARGV[2…]. Returns those that are settled or unknown.
local leases, ends_ms = KEYS[1] .. 'leases', now_ms() + tonumber(ARGV[1])
local lost = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', leases, ARGV[i]) then
    redis.call('ZADD', leases, ends_ms, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost

-- name: watch
-- Records a search for lapsed leases in the hash KEYS[1], and returns 1 if they may be acted on. After a gap of half a lease (the
-- store was unavailable, or its clock jumped), holders get one whole lease to renew; returns 0 until then.
local now, lease_ms = now_ms(), tonumber(ARGV[1])
local watch = redis.call('HMGET', KEYS[1], 'seen_ms', 'grace_ms')
local seen, grace = tonumber(watch[1]) or now, tonumber(watch[2]) or 0
if now - seen > lease_ms / 2 then grace = now + lease_ms end
if grace > now + lease_ms then grace = now + lease_ms end -- set before the clock stepped back
redis.call('HSET', KEYS[1], 'seen_ms', now, 'grace_ms', grace)
return now >= grace and 1 or 0

-- name: expired
-- Finds reservations whose lease has run out; they stay reserved until they are settled. Also finds gateways' rights that were not
-- renewed for a lease. Returns {open reservations and rights, {{reservation, tenant, model, lane, prompts, expiry of its
-- idempotency key}, …}, number of audit entries waiting, names of rights, time until which these were valid at most, ms}.
local MOST_RIGHTS = 8
local most, lease_ms, longest_lease_ms = ARGV[1], ARGV[2], ARGV[3]
local prefix, leases, now = KEYS[1], KEYS[1] .. 'leases', now_ms()

-- A lease that ends later than any lease can was dated by a clock that has stepped back since: restart it.
local latest = '(' .. string.format('%.0f', now + longest_lease_ms)
for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', leases, latest, '+inf', 'LIMIT', 0, most)) do
  redis.call('ZADD', leases, now + lease_ms, reservation)
end

local lapsed = {}
for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, most)) do
  local record = redis.call('GET', prefix .. 'reservation:' .. reservation)
  if record and not is_settled(record) then
    local found = unpack_reservation(record)
    lapsed[#lapsed + 1] = {reservation, found[F_TENANT], found[F_MODEL], found[F_LANE], found[F_PROMPTS], found[F_ONCE_UNTIL]}
  else
    redis.call('ZREM', leases, reservation) -- the store lost the record: nothing can be settled
  end
end

local escrows, until_ms = redis.call('ZRANGE', prefix .. 'escrows', 0, MOST_RIGHTS - 1, 'WITHSCORES'), now - lease_ms
local rights = {}
for at = 1, #escrows, 2 do
  if tonumber(escrows[at + 1]) > now + longest_lease_ms then
    redis.call('ZADD', prefix .. 'escrows', now, escrows[at]) -- dated by a clock that has stepped back since
  elseif tonumber(escrows[at + 1]) <= until_ms then
    rights[#rights + 1] = escrows[at]
  end
end
local open = redis.call('ZCARD', leases) + #escrows / 2
return {open, lapsed, redis.call('LLEN', prefix .. 'audit'), rights, until_ms}

-- name: unlist
-- Removes a root from the zset KEYS[1] if it was not enlisted since a given time.
local root, until_ms = ARGV[1], tonumber(ARGV[2])
local enlisted = redis.call('ZSCORE', KEYS[1], root)
if enlisted and tonumber(enlisted) <= until_ms then redis.call('ZREM', KEYS[1], root) end
