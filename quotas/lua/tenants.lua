-- Tenants: claims to ids, and tenants' records with their cards.

-- name: tenant_claim
-- Gives a tenant's id to a root organisation, if it is free or its owner's claim was barred. The index decides, since each
-- root's keys have a hash tag of their own. Called by TenantIds.
-- KEYS[1]  the index: zset of `<tenant> <root>`, all with score 0
-- ARGV     1 tenant, 2 root that asks for it, 3 number of the barred claim (tenant_bar), '' for none
-- Returns  {root that has the id now, number of its claim}
local index, tenant, root = KEYS[1], ARGV[1], ARGV[2]
local claims = 'fl:claims:{' .. index .. '}'
local entry = redis.call('ZRANGEBYLEX', index, '[' .. tenant .. ' ', '(' .. tenant .. ' \x7f', 'LIMIT', 0, 1)[1]
local owner = entry and string.sub(entry, #tenant + 2)
local name = redis.sha1hex(tenant) -- the number outlives an erased tenant, its id must not; older versions wrote the id
local claim = redis.call('HGET', claims, name) or redis.call('HGET', claims, tenant) or '0'
if owner == root or (owner and ARGV[3] ~= claim) then return {owner, tonumber(claim)} end
if owner then
  redis.call('ZREM', index, entry)
  claim = claim + 1
  redis.call('HSET', claims, name, claim)
end
redis.call('ZADD', index, 0, tenant .. ' ' .. root)
return {root, tonumber(claim)}

-- name: tenant_bar
-- Bars a claim to an id that has created no tenant yet, so that another root may have the id. Called by TenantIds.
-- KEYS[1]  prefix of all keys of the root that has the claim, with its hash tag
-- ARGV     1 tenant, 2 number of the claim
-- Returns  the state of the tenant if it was created, even if it is deleted; else '': no put under this claim can create it
local record = KEYS[1] .. 'tenant:' .. ARGV[1]
local found = redis.call('HMGET', record, 'state', 'barred')
if found[1] then return found[1] end
redis.call('HSET', record, 'barred', math.max(tonumber(found[2] or -1), tonumber(ARGV[2])))
return ''

-- name: tenant_read
-- Reads a tenant. As a script it can share a packet with others, which a page of tenants needs. Called by TenantStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant
-- Returns  {document, state, version}; the document is false if there is no tenant
return redis.call('HMGET', KEYS[1] .. 'tenant:' .. ARGV[1], 'doc', 'state', 'version')

-- name: tenant_put
-- Writes a tenant with all its limits, if its version is the expected one. Called by TenantStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 expected version, '0' to create, 3 number of the claim when creating, 4 state, 5 zone as JSON,
--          6 document, 7 models and lanes with limits of their own as JSON [[model, lane], …], 8 accounts above as JSON,
--          nearest first, 9… pairs of level id and card, last the audit entry
-- Returns  the new version, or without a change 'exists', 'barred', 'missing', 'conflict', 'orphan'; 'used' if an earlier
--          tenant had the id, so that the new one needs an incarnation
local prefix, account = KEYS[1], ARGV[1]
local tenant, incarnation = parts_of(account)
local record = prefix .. 'tenant:' .. tenant
local found = redis.call('HMGET', record, 'state', 'version', 'by', 'barred', 'incarnation')
local alive, version = found[1] and found[1] ~= 'deleted', tonumber(found[2]) or 0
local parent = cjson.decode(ARGV[8])[1]
if ARGV[2] == '0' then
  if alive then return 'exists' end
  if found[4] and tonumber(ARGV[3]) <= tonumber(found[4]) then return 'barred' end
  if found[1] and incarnation == '' then return 'used' end
  if parent and not is_alive(prefix, parent) then return 'orphan' end
  redis.call('PERSIST', record) -- the record of a forgotten id expires
  if parent then redis.call('SADD', prefix .. 'children:' .. parts_of(parent), tenant) end
  local earlier = found[1] and account_of(tenant, found[5] or '')
  if earlier and not redis.call('ZSCORE', prefix .. 'past:' .. tenant, earlier) then -- deleted by an older version
    redis.call('ZADD', prefix .. 'past:' .. tenant, now_ms(), earlier)
    redis.call('ZADD', prefix .. 'gone', now_ms(), earlier)
    redis.call('HSET', prefix .. 'gone:' .. earlier, 'deleted_ms', now_ms())
  end
elseif not alive or (found[5] or '') ~= incarnation then
  return 'missing'
elseif version ~= tonumber(ARGV[2]) then
  return 'conflict'
end
redis.call('HSET', record, 'state', ARGV[4], 'version', version + 1, 'zone', ARGV[5], 'doc', ARGV[6], 'by', ARGV[7],
  'parents', ARGV[8], 'incarnation', incarnation)
local gone = {}
for _, by in ipairs(found[3] and cjson.decode(found[3]) or {}) do gone['by:' .. account .. ':' .. by[2] .. ':' .. by[1]] = true end
for i = 9, #ARGV, 2 do
  redis.call('SET', prefix .. 'card:' .. ARGV[i], ARGV[i + 1])
  gone[ARGV[i]] = nil
end
for level in pairs(gone) do drop_card(prefix, level) end
return changed(version + 1)

-- name: tenant_delete
-- Ends a tenant and with it all its keys, and lists its data for erasure; its ledger and figures stay. Called by TenantStore,
-- which lists the root in fl:erasing first.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 expected version, or '' for any, 3 audit entry
-- Returns  1, or without a change: false if there is no such tenant, 'conflict', 'children' if it is the parent of others
local prefix, tenant = KEYS[1], ARGV[1]
local record = prefix .. 'tenant:' .. tenant
local found = redis.call('HMGET', record, 'state', 'by', 'parents', 'version', 'incarnation', 'doc')
local account = account_of(tenant, found[5] or '')
if not found[1] or found[1] == 'deleted' then return false end
if ARGV[2] ~= '' and ARGV[2] ~= found[4] then return 'conflict' end
if redis.call('SCARD', prefix .. 'children:' .. tenant) > 0 then return 'children' end
local known = cjson.decode(found[6] or '{}')
local created_s = tonumber(known.created_at) or 0
local parent = found[3] and cjson.decode(found[3])[1]
if parent then redis.call('SREM', prefix .. 'children:' .. parts_of(parent), tenant) end
redis.call('HSET', record, 'state', 'deleted')
redis.call('HINCRBY', record, 'version', 1)
redis.call('HDEL', record, 'doc', 'by')
for _, by in ipairs(found[2] and cjson.decode(found[2]) or {}) do
  drop_card(prefix, 'by:' .. account .. ':' .. by[2] .. ':' .. by[1])
end
local card = prefix .. 'card:tenant:' .. account
local zone, parents = struct.unpack('<d', redis.call('GET', card), 9), cjson.decode(found[3] or '[]')
redis.call('SET', card, struct.pack('<ddddddddddddd', 3, zone, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1) ..
  cjson.encode({{}, parents}))
redis.call('PEXPIRE', prefix .. 'figures:tenant:' .. account, KEPT_MS)
local now = now_ms()
redis.call('ZADD', prefix .. 'past:' .. tenant, now, account)
redis.call('ZADD', prefix .. 'gone', now, account)
redis.call('HSET', prefix .. 'gone:' .. account, 'deleted_ms', now, 'created_s', string.format('%.17g', created_s),
  'share_group', known.share_group or '', 'by', found[2] or '[]')
return changed(1)

-- name: tenant_accounts
-- Reads the accounts of an id: its latest tenant's, deleted or not, and earlier ones whose ledger is kept. Called by
-- TenantIds.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant
-- Returns  {account of the latest tenant, accounts of deleted ones, latest deletion first, …}; empty if there never was one
local found = redis.call('HMGET', KEYS[1] .. 'tenant:' .. ARGV[1], 'state', 'incarnation')
if not found[1] then return {} end
local incarnation = found[2] or ''
local last = incarnation == '' and ARGV[1] or ARGV[1] .. '~' .. incarnation
return {last, unpack(redis.call('ZREVRANGE', KEYS[1] .. 'past:' .. ARGV[1], 0, 999))} -- at most 1,000

-- name: tenant_forget
-- Deletes a deleted tenant's account, and the id's record unless a tenant or another account has the id. Repeatable.
-- Called by LedgerErasure.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 number of the claim to its id
-- Returns  1 if the record is deleted: no put under this claim can create a tenant any more, so the index may drop the id
--          (tenant_unclaim); else 0
local BARRED_MS = 3600000 -- longer than any creation takes
local prefix, account = KEYS[1], ARGV[1]
local tenant = string.match(account, '^[^~]*')
local record, past = prefix .. 'tenant:' .. tenant, prefix .. 'past:' .. tenant
redis.call('ZREM', past, account)
local state = redis.call('HGET', record, 'state')
if (state and state ~= 'deleted') or redis.call('EXISTS', past) == 1 then return 0 end
redis.call('DEL', record)
redis.call('HSET', record, 'barred', ARGV[2])
redis.call('PEXPIRE', record, BARRED_MS)
return 1

-- name: tenant_unclaim
-- Removes an id from the index once its record is deleted; later claims get a higher number. Repeatable. Called by
-- LedgerErasure.
-- KEYS[1]  the index: zset of `<tenant> <root>`, all with score 0
-- ARGV     1 tenant, 2 its root, 3 number of the claim
-- Returns  nothing; an id claimed again since stays
local claims, name = 'fl:claims:{' .. KEYS[1] .. '}', redis.sha1hex(ARGV[1])
local claim = redis.call('HGET', claims, name) or redis.call('HGET', claims, ARGV[1]) or '0'
if claim ~= ARGV[3] then return end
redis.call('HDEL', claims, ARGV[1]) -- written by an older version
redis.call('HSET', claims, name, claim + 1)
redis.call('ZREM', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
