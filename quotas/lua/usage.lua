-- The sums of a tenant's ledger over days and rolled-up months; writes nothing. Called by Ledger.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2… days as YYYY-MM-DD, months as YYYY-MM
-- Returns  for each of them {lane TAB model TAB key TAB figure, sum, …}
local days = {}
for i = 2, #ARGV do days[i - 1] = redis.call('HGETALL', KEYS[1] .. 'usage:' .. ARGV[1] .. ':' .. ARGV[i]) end
return days
