-- Ends a tenant and all its keys at once; its ledger and what it has used stay. Called by TenantStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 version that is expected, or '' for any, 3 entry of the audit log
-- Returns  the public ids of its keys, or having written nothing: false where there is no such tenant, 'conflict',
--          'children' where some have it as parent
local prefix, tenant = KEYS[1], ARGV[1]
local record, keys = prefix .. 'tenant:' .. tenant, prefix .. 'keys:' .. tenant
local found = redis.call('HMGET', record, 'state', 'by', 'parents', 'version')
if not found[1] or found[1] == 'deleted' then return false end
if ARGV[2] ~= '' and ARGV[2] ~= found[4] then return 'conflict' end
if redis.call('SCARD', prefix .. 'children:' .. tenant) > 0 then return 'children' end
local parent = found[3] and cjson.decode(found[3])[1]
if parent then redis.call('SREM', prefix .. 'children:' .. parent, tenant) end
redis.call('HSET', record, 'state', 'deleted')
redis.call('HINCRBY', record, 'version', 1)
redis.call('HDEL', record, 'doc', 'by')
for _, by in ipairs(found[2] and cjson.decode(found[2]) or {}) do
  drop_card(prefix, 'by:' .. tenant .. ':' .. by[2] .. ':' .. by[1])
end
local card = prefix .. 'card:tenant:' .. tenant
local zone, parents = struct.unpack('<d', redis.call('GET', card), 9), cjson.decode(found[3] or '[]')
redis.call('SET', card, struct.pack('<ddddddddddddd', 3, zone, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1) ..
  cjson.encode({{}, parents}))
redis.call('PEXPIRE', prefix .. 'figures:tenant:' .. tenant, KEPT_MS)
local ids = redis.call('ZRANGE', keys, 0, -1)
for _, id in ipairs(ids) do
  redis.call('DEL', prefix .. 'key:' .. id)
  drop_card(prefix, 'key:' .. id)
end
redis.call('DEL', keys)
note()
return ids
