-- The installation's price list.

-- name: prices_put
-- Replaces the price list if its version is the expected one. Called by PriceStore.
-- KEYS[1]  prefix of the prices' keys, with its hash tag
-- ARGV     1 expected version, '' for any, 2 document, 3 audit entry
-- Returns  the new version, or 'conflict' without a change
local list = KEYS[1] .. 'prices'
local version = tonumber(redis.call('HGET', list, 'version')) or 0
if ARGV[1] ~= '' and tonumber(ARGV[1]) ~= version then return 'conflict' end
redis.call('HSET', list, 'version', version + 1, 'doc', ARGV[2])
return changed(version + 1)
