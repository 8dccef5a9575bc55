-- Revokes a key; again is no change. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 public id, 3 entry of the audit log
-- Returns  {document, state, expires at ms or '', used at ms or nil, version} as they are now, or false where the tenant
--          has no such key
local prefix, id = KEYS[1], ARGV[2]
local found = redis.call('HMGET', prefix .. 'key:' .. id, 'tenant', 'doc', 'state', 'expires_ms', 'used_ms', 'version')
if found[1] ~= ARGV[1] then return false end
if found[3] == 'active' then
  found[3], found[6] = 'revoked', end_key(prefix, id, 'revoked', found[4])
  note()
end
return {found[2], found[3], found[4], found[5], found[6]}
