-- Tenants: claims to ids, and tenants' records with their cards.

-- name: tenant_claim
-- Gives a tenant's id to a root organisation, if it is free or its owner's claim was barred (tenant_bar; '' for none). The index
-- KEYS[1] decides, since each root's keys have a hash tag of their own. Returns {root that has the id now, number of its claim}.
local index, tenant, root, barred = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local claims = 'fl:claims:{' .. index .. '}'
local entry = redis.call('ZRANGEBYLEX', index, '[' .. tenant .. ' ', '(' .. tenant .. ' \x7f', 'LIMIT', 0, 1)[1]
local owner = entry and string.sub(entry, #tenant + 2)
local name = redis.sha1hex(tenant) -- the number outlives an erased tenant, its id must not
local claim = redis.call('HGET', claims, name) or '0'
if owner == root or (owner and barred ~= claim) then return {owner, tonumber(claim)} end
if owner then
  redis.call('ZREM', index, entry)
  claim = claim + 1
  redis.call('HSET', claims, name, claim)
end
redis.call('ZADD', index, 0, tenant .. ' ' .. root)
return {root, tonumber(claim)}

-- name: tenant_bar
-- Bars a claim to an id that has created no tenant yet, so that another root may have the id. KEYS[1] belongs to the root that has
-- the claim. Returns the state of the tenant if it was created, even if it is deleted; else '': no put under this claim can create
-- it.
local tenant, claim = ARGV[1], tonumber(ARGV[2])
local record = KEYS[1] .. 'tenant:' .. tenant
local found = redis.call('HMGET', record, 'state', 'barred')
if found[1] then return found[1] end
redis.call('HSET', record, 'barred', math.max(tonumber(found[2] or -1), claim))
return ''

-- name: tenant_read
-- Reads a tenant. As a script it can share a packet with others, which a page of tenants needs. Returns {document, state, version};
-- the document is false if there is no tenant.
return redis.call('HMGET', KEYS[1] .. 'tenant:' .. ARGV[1], 'doc', 'state', 'version')

-- name: tenant_put
-- Writes a tenant with all its limits, if its version is the expected one, '0' to create it under a claim. `by_names` lists the
-- models and lanes with limits of their own as JSON [[model, lane], …], `parents` the accounts above as JSON, nearest first;
-- ARGV[9…] are pairs of level id and card. Returns the new version, or without a change 'exists', 'barred', 'missing', 'conflict',
-- 'orphan'; 'used' if an earlier tenant had the id, so that the new one needs an incarnation.
local prefix, account, expected, claim, state = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local zone, document, by_names, parents = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local tenant, incarnation = parts_of(account)
local record = prefix .. 'tenant:' .. tenant
local found = redis.call('HMGET', record, 'state', 'version', 'by', 'barred', 'incarnation')
local alive, version = found[1] and found[1] ~= 'deleted', tonumber(found[2]) or 0
local parent = cjson.decode(parents)[1]
if expected == '0' then
  if alive then return 'exists' end
  if found[4] and claim <= tonumber(found[4]) then return 'barred' end
  if found[1] and incarnation == '' then return 'used' end
  if parent and not is_alive(prefix, parent) then return 'orphan' end
  redis.call('PERSIST', record) -- the record of a forgotten id expires
  if parent then redis.call('SADD', prefix .. 'children:' .. parts_of(parent), tenant) end
elseif not alive or (found[5] or '') ~= incarnation then
  return 'missing'
elseif version ~= tonumber(expected) then
  return 'conflict'
end
redis.call('HSET', record, 'state', state, 'version', version + 1, 'zone', zone, 'doc', document, 'by', by_names,
  'parents', parents, 'incarnation', incarnation)
local gone = {}
for _, by in ipairs(found[3] and cjson.decode(found[3]) or {}) do gone['by:' .. account .. ':' .. by[2] .. ':' .. by[1]] = true end
for i = 9, #ARGV, 2 do
  redis.call('SET', prefix .. 'card:' .. ARGV[i], ARGV[i + 1])
  gone[ARGV[i]] = nil
end
for level in pairs(gone) do drop_card(prefix, level) end
return changed(version + 1)

-- name: tenant_delete
-- Ends a tenant and with it all its keys, and lists its data for erasure; its ledger and figures stay. The caller lists the root in
-- fl:erasing first. `expected` is a version, '' for any. Returns 1, or without a change: false if there is no such tenant,
-- 'conflict', 'children' if it is the parent of others.
local prefix, tenant, expected = KEYS[1], ARGV[1], ARGV[2]
local record = prefix .. 'tenant:' .. tenant
local found = redis.call('HMGET', record, 'state', 'by', 'parents', 'version', 'incarnation', 'doc')
local account = account_of(tenant, found[5] or '')
if not found[1] or found[1] == 'deleted' then return false end
if expected ~= '' and expected ~= found[4] then return 'conflict' end
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
local parents = cjson.decode(found[3] or '[]')
redis.call('SET', card, struct.pack('<ddddddddddddd', 3, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1) ..
  cjson.encode({{}, parents}))
redis.call('PEXPIRE', prefix .. 'figures:tenant:' .. account, KEPT_MS)
local now = now_ms()
redis.call('ZADD', prefix .. 'past:' .. tenant, now, account)
redis.call('ZADD', prefix .. 'gone', now, account)
redis.call('HSET', prefix .. 'gone:' .. account, 'deleted_ms', now, 'created_s', string.format('%.17g', created_s),
  'share_group', known.share_group or '', 'by', found[2] or '[]')
return changed(1)

-- name: tenant_accounts
-- Reads the accounts of an id. Returns {account of the latest tenant, deleted or not, accounts of deleted ones whose ledger is kept,
-- latest deletion first, …}; empty if there never was one.
local tenant = ARGV[1]
local found = redis.call('HMGET', KEYS[1] .. 'tenant:' .. tenant, 'state', 'incarnation')
if not found[1] then return {} end
local incarnation = found[2] or ''
local last = incarnation == '' and tenant or tenant .. '~' .. incarnation
return {last, unpack(redis.call('ZREVRANGE', KEYS[1] .. 'past:' .. tenant, 0, 999))} -- at most 1,000

-- name: tenant_forget
-- Deletes a deleted tenant's account, and the id's record unless a tenant or another account has the id. Returns 1 if the record is
-- deleted: no put under this claim can create a tenant any more, so the index may drop the id (tenant_unclaim); else 0. Repeatable.
local BARRED_MS = 3600000 -- longer than any creation takes
local prefix, account, claim = KEYS[1], ARGV[1], ARGV[2]
local tenant = string.match(account, '^[^~]*')
local record, past = prefix .. 'tenant:' .. tenant, prefix .. 'past:' .. tenant
redis.call('ZREM', past, account)
local state = redis.call('HGET', record, 'state')
if (state and state ~= 'deleted') or redis.call('EXISTS', past) == 1 then return 0 end
redis.call('DEL', record)
redis.call('HSET', record, 'barred', claim)
redis.call('PEXPIRE', record, BARRED_MS)
return 1

-- name: tenant_unclaim
-- Removes an id from the index KEYS[1] once its record is deleted; later claims get a higher number. An id that was claimed again
-- since stays. Repeatable.
local tenant, root, claim = ARGV[1], ARGV[2], ARGV[3]
local claims, name = 'fl:claims:{' .. KEYS[1] .. '}', redis.sha1hex(tenant)
if (redis.call('HGET', claims, name) or '0') ~= claim then return end
redis.call('HSET', claims, name, claim + 1)
redis.call('ZREM', KEYS[1], tenant .. ' ' .. root)
