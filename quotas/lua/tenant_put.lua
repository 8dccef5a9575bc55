-- Writes a tenant whole, with its limits, if it still is as the writer saw it. Called by TenantStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 version that is expected, '0' to create, 3 state, 4 zone as JSON, 5 document,
--          6 limits as JSON {name: figure, 'shadow:<name>': 1}
-- Returns  the new version, or 'exists', 'missing', 'conflict' having written nothing
local record, limits = KEYS[1] .. 'tenant:' .. ARGV[1], KEYS[1] .. 'limits:tenant:' .. ARGV[1]
local found = redis.call('HMGET', record, 'state', 'version')
local alive, version = found[1] and found[1] ~= 'deleted', tonumber(found[2]) or 0
if ARGV[2] == '0' then
  if alive then return 'exists' end
elseif not alive then
  return 'missing'
elseif version ~= tonumber(ARGV[2]) then
  return 'conflict'
end
redis.call('HSET', record, 'state', ARGV[3], 'version', version + 1, 'zone', ARGV[4], 'doc', ARGV[5])
redis.call('DEL', limits)
for name, figure in pairs(cjson.decode(ARGV[6])) do redis.call('HSET', limits, name, figure) end
return version + 1
