-- Ends a tenant and all its keys at once; its ledger and what it has used stay. Called by TenantStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant
-- Returns  the public ids of its keys, or false where there is no such tenant
local prefix, tenant = KEYS[1], ARGV[1]
local record, keys = prefix .. 'tenant:' .. tenant, prefix .. 'keys:' .. tenant
local state = redis.call('HGET', record, 'state')
if not state or state == 'deleted' then return false end
redis.call('HSET', record, 'state', 'deleted')
redis.call('HINCRBY', record, 'version', 1)
redis.call('HDEL', record, 'doc')
redis.call('DEL', prefix .. 'limits:tenant:' .. tenant)
local ids = redis.call('ZRANGE', keys, 0, -1)
for _, id in ipairs(ids) do redis.call('DEL', prefix .. 'key:' .. id, prefix .. 'limits:key:' .. id) end
redis.call('DEL', keys)
return ids
