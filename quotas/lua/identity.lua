-- A tenant and one of its keys as they are now; notes at most once a minute that the key was used. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 public id
-- Returns  {now ms, {tenant document, state, version}, {key document, state, expires at ms or '', used at ms, version}};
--          nil parts where there is none
local USED_EVERY_MS = 60000
local record, now = KEYS[1] .. 'key:' .. ARGV[2], now_ms()
local tenant = redis.call('HMGET', KEYS[1] .. 'tenant:' .. ARGV[1], 'doc', 'state', 'version')
local key = redis.call('HMGET', record, 'doc', 'state', 'expires_ms', 'used_ms', 'version')
local expires, used = tonumber(key[3]), tonumber(key[4])
local works = key[2] == 'active' and not (expires and expires <= now)
if works and not (used and used <= now and now - used < USED_EVERY_MS) then
  redis.pcall('HSET', record, 'used_ms', now) -- a store that is full must not lock its tenants out
end
return {now, tenant, key}
