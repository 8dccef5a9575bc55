The metrics of the fleet. KEYS[1]: the prefix of all keys; the package's docstring describes them.

-- name: metrics_report
-- ARGV: number of the slot, gateway, its report, ms for which a slot is kept, the merger's lease in ms.
-- Returns the store's clock in ms, and 1 if this gateway must merge, else 0.
local slot, merger = KEYS[1] .. 'slot:' .. ARGV[1], KEYS[1] .. 'merger'
local time = redis.call('TIME')
redis.call('HSET', slot, ARGV[2], ARGV[3])
redis.call('PEXPIRE', slot, ARGV[4])
local holder = redis.call('GET', merger)
local merges = not holder or holder == ARGV[2]
if merges then
  redis.call('SET', merger, ARGV[2], 'PX', ARGV[5])
end
return {time[1] * 1000 + math.floor(time[2] / 1000), merges and 1 or 0}

-- name: metrics_recent
-- ARGV: numbers of slots. Returns number, gateway and report, one after the other.
local found = {}
for _, number in ipairs(ARGV) do
  local reports = redis.call('HGETALL', KEYS[1] .. 'slot:' .. number) -- at most the gateways
  for at = 1, #reports, 2 do
    found[#found + 1] = number
    found[#found + 1] = reports[at]
    found[#found + 1] = reports[at + 1]
  end
end
return found
