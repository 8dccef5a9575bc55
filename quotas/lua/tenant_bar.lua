-- Bars a claim to a tenant's id that has made no tenant yet, so that another root may have it. Called by TenantIds.
-- KEYS[1]  prefix of all keys of the root that has the claim, with its hash tag
-- ARGV     1 tenant, 2 number of the claim
-- Returns  the tenant's state where it was made, a deleted one's too; else '': no put under this claim will make it
local record = KEYS[1] .. 'tenant:' .. ARGV[1]
local found = redis.call('HMGET', record, 'state', 'barred')
if found[1] then return found[1] end
redis.call('HSET', record, 'barred', math.max(tonumber(found[2] or -1), tonumber(ARGV[2])))
return ''
