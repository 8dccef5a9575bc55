-- The sums of a tenant's ledger over days and rolled-up months; writes nothing. Called by Ledger.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2… days as YYYY-MM-DD, months as YYYY-MM
-- Returns  for each of them {{lane TAB model TAB key, requests, prompt, cached and output tokens}, …}
local days = {}
for i = 2, #ARGV do
  local sums, groups = redis.call('HGETALL', KEYS[1] .. 'usage:' .. ARGV[1] .. ':' .. ARGV[i]), {}
  for field = 1, #sums, 2 do
    local requests, prompt, cached, output = struct.unpack(USAGE, sums[field + 1])
    groups[#groups + 1] = {sums[field], requests, prompt, cached, output}
  end
  days[#days + 1] = groups
end
return days
