-- Changes a key that is not revoked, if it still is of the version that the writer saw. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 public id, 3 version that is expected, 4 document, 5 expires at ms or '', 6 card, 7 entry of
--          the audit log
-- Returns  1, or having written nothing: 0 where it is another's, revoked or unknown, -1 where it was changed since
local prefix, id = KEYS[1], ARGV[2]
local found = redis.call('HMGET', prefix .. 'key:' .. id, 'tenant', 'state', 'version')
if found[1] ~= ARGV[1] or found[2] ~= 'active' then return 0 end
if (tonumber(found[3]) or 0) ~= tonumber(ARGV[3]) then return -1 end
redis.call('HSET', prefix .. 'key:' .. id, 'doc', ARGV[4], 'expires_ms', ARGV[5], 'version', string.format('%.0f', ARGV[3] + 1))
redis.call('SET', prefix .. 'card:key:' .. id, ARGV[6])
note()
return 1
