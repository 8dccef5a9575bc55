-- Adds a key to a tenant. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 public id, 3 created at ms, 4 expires at ms or '', 5 document, 6 card
-- Returns  1, or 0 where there is no such tenant
local prefix, tenant, id = KEYS[1], ARGV[1], ARGV[2]
local state = redis.call('HGET', prefix .. 'tenant:' .. tenant, 'state')
if not state or state == 'deleted' then return 0 end
redis.call('HSET', prefix .. 'key:' .. id, 'state', 'active', 'tenant', tenant, 'expires_ms', ARGV[4], 'doc', ARGV[5])
redis.call('ZADD', prefix .. 'keys:' .. tenant, ARGV[3], id)
redis.call('SET', prefix .. 'card:key:' .. id, ARGV[6])
return 1
