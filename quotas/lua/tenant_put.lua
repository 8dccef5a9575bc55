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
note()
return version + 1
