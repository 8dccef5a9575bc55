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
local name = redis.sha1hex(tenant) -- an erased tenant's number stays, and its id must not; older versions wrote the id
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
-- ARGV     1 account, 2 version that is expected, '0' to create, 3 claim under which it is created, 4 state, 5 zone as
--          JSON, 6 document, 7 models and lanes with limits of their own as JSON [[model, lane], …], 8 accounts above as
--          JSON, nearest first, 9… level id and its card, again and again, last entry of the audit log
-- Returns  the new version, or 'exists', 'barred', 'missing', 'conflict', 'orphan' having written nothing; 'used' where an
--          earlier tenant had the id, so that a new one needs an incarnation
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
  redis.call('PERSIST', record) -- of an id that was forgotten lately
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
-- Ends a tenant at once, and with it all its keys: a key works only while its tenant does. Lists its data, the records of
-- these keys too, for erasure (keys_drop); its ledger and what it has used stay. Called by TenantStore, which lists the
-- root in fl:erasing first.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 version that is expected, or '' for any, 3 entry of the audit log
-- Returns  1, or having written nothing: false where there is no such tenant, 'conflict',
--          'children' where some have it as parent
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
-- The accounts of an id: of its tenant, deleted or not, and of earlier ones whose ledger is kept. Called by TenantIds.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant
-- Returns  {account of the last tenant, accounts of deleted ones, the last deleted first, …}; empty where there never was one
local found = redis.call('HMGET', KEYS[1] .. 'tenant:' .. ARGV[1], 'state', 'incarnation')
if not found[1] then return {} end
local incarnation = found[2] or ''
local last = incarnation == '' and ARGV[1] or ARGV[1] .. '~' .. incarnation
return {last, unpack(redis.call('ZREVRANGE', KEYS[1] .. 'past:' .. ARGV[1], 0, 999))} -- at most 1,000

-- name: tenant_forget
-- Forgets a deleted tenant's account, and the id's record where no tenant has the id and nothing else of it is left.
-- Called by LedgerErasure, maybe twice.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 number of the claim to its id
-- Returns  1 where the record is gone: no put under this claim makes a tenant any more, so that the index may forget the id
--          (tenant_unclaim); else 0
local BARRED_MS = 3600000 -- no creation takes so long
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
-- Forgets whose an id is, once its record is gone: later claims have a higher number. Called by LedgerErasure, maybe twice.
-- KEYS[1]  the index: zset of `<tenant> <root>`, all with score 0
-- ARGV     1 tenant, 2 its root, 3 number of the claim
-- Returns  nothing: where the id was claimed anew since, it stays
local claims, name = 'fl:claims:{' .. KEYS[1] .. '}', redis.sha1hex(ARGV[1])
local claim = redis.call('HGET', claims, name) or redis.call('HGET', claims, ARGV[1]) or '0'
if claim ~= ARGV[3] then return end
redis.call('HDEL', claims, ARGV[1]) -- of an older version
redis.call('HSET', claims, name, claim + 1)
redis.call('ZREM', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
