-- The ledger's sums.

-- name: usage
-- The sums of a tenant's ledger over days and rolled-up months; writes nothing. Called by Ledger.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2… days as YYYY-MM-DD, months as YYYY-MM
-- Returns  for each of them {{lane TAB model TAB key, requests, prompt, cached and output tokens, money in nano-units,
--          microseconds of accelerators, milliseconds of KV blocks}, …}
local days = {}
for i = 2, #ARGV do
  local sums, groups = redis.call('HGETALL', KEYS[1] .. 'usage:' .. ARGV[1] .. ':' .. ARGV[i]), {}
  for field = 1, #sums, 2 do
    local requests, prompt, cached, output, spend, gpu, kv = unpack_usage(sums[field + 1])
    groups[#groups + 1] = {sums[field], requests, prompt, cached, output, spend, gpu, kv}
  end
  days[#days + 1] = groups
end
return days

-- name: usage_roll
-- Adds day sums of a tenant's ledger to their month's and drops the days: once, whoever else does the same. Called by
-- RollUp.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 last day rolled before, '' for none, 3 last day rolled after this, 4 ms that a month is kept from now,
--          5… days as YYYY-MM-DD
-- Returns  1 where they are rolled up, or 0 having written nothing where others have rolled other days since
local usage, marker = KEYS[1] .. 'usage:' .. ARGV[1] .. ':', KEYS[1] .. 'rolled:' .. ARGV[1]
local rolled = redis.call('GET', marker) or ''
if rolled == ARGV[3] then return 1 end
if rolled ~= ARGV[2] then return 0 end
for i = 5, #ARGV do
  local sums, month = redis.call('HGETALL', usage .. ARGV[i]), usage .. string.sub(ARGV[i], 1, 7)
  for field = 1, #sums, 2 do
    local added, stored = {unpack_usage(sums[field + 1])}, {unpack_usage(redis.call('HGET', month, sums[field]))}
    for place = 1, USAGE_FIGURES do stored[place] = stored[place] + added[place] end
    redis.call('HSET', month, sums[field], struct.pack(USAGE, unpack(stored, 1, USAGE_FIGURES)))
  end
  redis.call('PEXPIRE', month, ARGV[4])
  redis.call('DEL', usage .. ARGV[i])
end
redis.call('SET', marker, ARGV[3])
return 1
