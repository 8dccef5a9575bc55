-- Extends the leases of open reservations. Called by RedisQuotaStore, for all reservations of a root at once.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 lease ms, 2… reservations
-- Returns  the reservations that hold nothing any more (settled or unknown)
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
