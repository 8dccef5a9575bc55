-- Tenants: whose an id is, and a tenant's record with its cards.

-- name: tenant_claim
-- Gives a tenant's id to a root organisation, if nobody has it or its owner can make the tenant no more. Called by
-- TenantIds: the index of all tenants is the one arbiter, since each root's keys have a hash tag of their own.
-- KEYS[1]  the index: zset of `<tenant> <root>`, all with score 0
-- ARGV     1 tenant, 2 root that asks for it, 3 the claim that was barred (tenant_bar.lua), '' for none
-- Returns  {root, number of its claim}: who has the id now
local index, tenant, root = KEYS[1], ARGV[1], ARGV[2]
local claims = 'fl:claims:{' .. index .. '}'
local entry = redis.call('ZRANGEBYLEX', index, '[' .. tenant .. ' ', '(' .. tenant .. ' \x7f', 'LIMIT', 0, 1)[1]
local owner = entry and string.sub(entry, #tenant + 2)
local claim = redis.call('HGET', claims, tenant) or '0'
if owner == root or (owner and ARGV[3] ~= claim) then return {owner, tonumber(claim)} end
if owner then
  redis.call('ZREM', index, entry)
  claim = redis.call('HINCRBY', claims, tenant, 1)
end
redis.call('ZADD', index, 0, tenant .. ' ' .. root)
return {root, tonumber(claim)}

-- name: tenant_bar
-- Bars a claim to a tenant's id that has made no tenant yet, so that another root may have it. Called by TenantIds.
-- KEYS[1]  prefix of all keys of the root that has the claim, with its hash tag
-- ARGV     1 tenant, 2 number of the claim
-- Returns  the tenant's state where it was made, a deleted one's too; else '': no put under this claim will make it
local record = KEYS[1] .. 'tenant:' .. ARGV[1]
local found = redis.call('HMGET', record, 'state', 'barred')
if found[1] then return found[1] end
redis.call('HSET', record, 'barred', math.max(tonumber(found[2] or -1), tonumber(ARGV[2])))
return ''

-- name: tenant_read
-- Reads a tenant. A script, so that it goes with others in one packet: a page of tenants is read at once. Called by
-- TenantStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant
-- Returns  {document, state, version}; the document is false where there is none
return redis.call('HMGET', KEYS[1] .. 'tenant:' .. ARGV[1], 'doc', 'state', 'version')

-- name: tenant_put
-- Writes a tenant whole, with all its limits, if it still is as the writer saw it. Called by TenantStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 version that is expected, '0' to create, 3 claim under which it is created, 4 state, 5 zone as
--          JSON, 6 document, 7 models and lanes with limits of their own as JSON [[model, lane], …], 8 tenants above as
--          JSON, nearest first, 9… level id and its card, again and again, last entry of the audit log
-- Returns  the new version, or 'exists', 'barred', 'missing', 'conflict', 'orphan' having written nothing
local prefix, tenant = KEYS[1], ARGV[1]
local record = prefix .. 'tenant:' .. tenant
local found = redis.call('HMGET', record, 'state', 'version', 'by', 'barred')
local alive, version = found[1] and found[1] ~= 'deleted', tonumber(found[2]) or 0
local parent = cjson.decode(ARGV[8])[1]
if ARGV[2] == '0' then
  if alive then return 'exists' end
  if found[4] and tonumber(ARGV[3]) <= tonumber(found[4]) then return 'barred' end
  local above = parent and (redis.call('HGET', prefix .. 'tenant:' .. parent, 'state') or 'deleted')
  if above == 'deleted' then return 'orphan' end
  if parent then redis.call('SADD', prefix .. 'children:' .. parent, tenant) end
elseif not alive then
  return 'missing'
elseif version ~= tonumber(ARGV[2]) then
  return 'conflict'
end
redis.call('HSET', record, 'state', ARGV[4], 'version', version + 1, 'zone', ARGV[5], 'doc', ARGV[6], 'by', ARGV[7],
  'parents', ARGV[8])
local gone = {}
for _, by in ipairs(found[3] and cjson.decode(found[3]) or {}) do gone['by:' .. tenant .. ':' .. by[2] .. ':' .. by[1]] = true end
for i = 9, #ARGV, 2 do
  redis.call('SET', prefix .. 'card:' .. ARGV[i], ARGV[i + 1])
  gone[ARGV[i]] = nil
end
for level in pairs(gone) do drop_card(prefix, level) end
return changed(version + 1)

-- name: tenant_delete
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
return changed(ids)
