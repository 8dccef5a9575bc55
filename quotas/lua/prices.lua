-- The installation's price list.

-- name: prices_put
-- Replaces the price list if its version is the expected one, '' for any. Returns the new version, or 'conflict'.
local expected, document = ARGV[1], ARGV[2]
local list = KEYS[1] .. 'prices'
local version = tonumber(redis.call('HGET', list, 'version')) or 0
if expected ~= '' and tonumber(expected) ~= version then return 'conflict' end
redis.call('HSET', list, 'version', version + 1, 'doc', document)
return changed(version + 1)
