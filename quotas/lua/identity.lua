-- A tenant and one of its keys as they are now; writes nothing. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 public id
-- Returns  {now ms, {tenant document, state, version}, {key document, state, expires at ms or ''}}; nil parts where
--          there is none
local tenant = redis.call('HMGET', KEYS[1] .. 'tenant:' .. ARGV[1], 'doc', 'state', 'version')
local key = redis.call('HMGET', KEYS[1] .. 'key:' .. ARGV[2], 'doc', 'state', 'expires_ms')
return {now_ms(), tenant, key}
