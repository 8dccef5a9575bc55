-- Ends a key, now or at a time; it never lives longer by it. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 public id, 3 'revoked' to end it now, or when it expires, ms
-- Returns  {document, state, expires at ms or '', used at ms or nil, version} as they are now, or false where the tenant
--          has no such key
local key = KEYS[1] .. 'key:' .. ARGV[2]
local found = redis.call('HMGET', key, 'tenant', 'doc', 'state', 'expires_ms', 'used_ms', 'version')
if found[1] ~= ARGV[1] then return false end
local before = found[3] .. found[4]
if ARGV[3] == 'revoked' then
  found[3] = 'revoked'
elseif not tonumber(found[4]) or tonumber(found[4]) > tonumber(ARGV[3]) then
  found[4] = ARGV[3]
end
if found[3] .. found[4] ~= before then found[6] = redis.call('HINCRBY', key, 'version', 1) end
redis.call('HSET', key, 'state', found[3], 'expires_ms', found[4])
local card = redis.call('GET', KEYS[1] .. 'card:key:' .. ARGV[2])
redis.call('SET', KEYS[1] .. 'card:key:' .. ARGV[2],
  struct.pack('<dd', found[3] == 'active' and 1 or 4, tonumber(found[4]) or 0) .. string.sub(card, 17))
return {found[2], found[3], found[4], found[5], found[6]}
