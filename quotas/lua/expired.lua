-- Finds reservations whose lease has run out; they stay reserved until settled. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 most to return, 2 lease ms, 3 longest lease there is, ms
-- Returns  {open reservations, {{reservation, tenant, model, lane, prompts, until when its
--          idempotency key is known}, …}, entries that wait for the audit log}
local prefix, leases, now = KEYS[1], KEYS[1] .. 'leases', now_ms()

-- A lease further away than any lease reaches was dated by a clock that has stepped back since: it starts anew.
for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', leases, '(' .. string.format('%.0f', now + ARGV[3]), '+inf')) do
  redis.call('ZADD', leases, now + ARGV[2], reservation)
end

local lapsed = {}
for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local record = redis.call('GET', prefix .. 'reservation:' .. reservation)
  if record and record ~= SETTLED then
    local found = unpack_reservation(record)
    lapsed[#lapsed + 1] = {reservation, found[F_TENANT], found[F_MODEL], found[F_LANE], found[F_PROMPTS], found[F_ONCE_UNTIL]}
  else
    redis.call('ZREM', leases, reservation) -- its record was lost by the store: nothing can be settled
  end
end
return {redis.call('ZCARD', leases), lapsed, redis.call('LLEN', prefix .. 'audit')}
