-- Adds a key to a tenant; one that is to take the place of another has that end too. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 public id, 3 created at ms, 4 expires at ms or '', 5 document, 6 card, 7 public id of the old key
--          or '', 8 its version that is expected, 9 when it ends at the latest, ms, 10 entry of the audit log
-- Returns  1, or having written nothing: 0 where there is no such tenant, -1 where the old key was changed or ended since
local prefix, tenant, id, old = KEYS[1], ARGV[1], ARGV[2], ARGV[7]
local state = redis.call('HGET', prefix .. 'tenant:' .. tenant, 'state')
if not state or state == 'deleted' then return 0 end
if old ~= '' then
  local found = redis.call('HMGET', prefix .. 'key:' .. old, 'tenant', 'state', 'version', 'expires_ms')
  if found[1] ~= tenant or found[2] ~= 'active' or (tonumber(found[3]) or 0) ~= tonumber(ARGV[8]) then return -1 end
  local ends = tonumber(found[4]) -- it never lives longer by it
  if not ends or ends > tonumber(ARGV[9]) then end_key(prefix, old, 'active', ARGV[9]) end
end
redis.call('HSET', prefix .. 'key:' .. id, 'state', 'active', 'tenant', tenant, 'expires_ms', ARGV[4], 'doc', ARGV[5])
redis.call('ZADD', prefix .. 'keys:' .. tenant, ARGV[3], id)
redis.call('SET', prefix .. 'card:key:' .. id, ARGV[6])
note()
return 1
