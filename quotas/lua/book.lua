-- Notes a flight that ran while nobody could ask, whatever the limits say, and holding nothing: settle then charges it.
-- Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 tenant, 3 key or '', 4 model, 5 lane, 6 prompts, 7 lease ms
-- Returns  1; 0 having written nothing where the flight is known, reserved or settled, or its tenant has gone
local prefix, flight_id, tenant, key = KEYS[1], ARGV[1], tenant_of(KEYS[1], ARGV[2]), ARGV[3]
local flight_key = prefix .. 'flight:' .. flight_id
local now = now_ms()
if redis.call('EXISTS', flight_key) == 1 or tenant.state == 'deleted' then return 0 end

local list = levels_of(tenant, key, ARGV[4], ARGV[5])
for _, level in ipairs(open_levels(prefix, list, now, {})) do
  minute_add(level.minute, level.minute.current, 1, 0, 0)
  redis.call('HINCRBY', prefix .. 'reserved:' .. level.id, 'requests', 1)
end
redis.call('HSET', flight_key, 'state', 'reserved', 'tenant', tenant.id, 'key', key, 'levels', cjson.encode(list),
  'model', ARGV[4], 'lane', ARGV[5], 'input', 0, 'output', 0, 'choice', 0, 'ceiling', 0, 'shadowed', '[]',
  'prompts', ARGV[6], 'slice', math.floor(now / SLICE_MS))
redis.call('ZADD', prefix .. 'leases', now + tonumber(ARGV[7]), flight_id)
return 1
