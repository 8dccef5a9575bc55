-- Holds the tokens of one request against every limit of every level, all or nothing. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 tenant, 3 key or '', 4 model, 5 lane, 6 prompt tokens, 7 of them in the longest prompt,
--          8 prompts, 9 output tokens per choice, 10 choices of all prompts, 11 '1' where the caller stated 9,
--          12 quantum per choice or 0 to hold all at once, 13 lease ms
-- Returns  {'granted', output tokens per choice held, the most per choice, shadowed names, statuses}, or having written
--          nothing: {'denied', status, requested, retry ms or -1, kind}, {'access', reason}, {'settled'}
local prefix, flight_id, tenant, key = KEYS[1], ARGV[1], tenant_of(KEYS[1], ARGV[2]), ARGV[3]
local flight_key = prefix .. 'flight:' .. flight_id
local now = now_ms()

local function barred()
  if tenant.state ~= 'active' then return tenant.state end
  for _, parent in ipairs(tenant.parents) do
    local state = redis.call('HGET', prefix .. 'tenant:' .. parent, 'state') or 'deleted'
    if state ~= 'active' then return state end
  end
  if key == '' then return nil end
  local found = redis.call('HMGET', prefix .. 'key:' .. key, 'state', 'expires_ms', 'tenant')
  if found[1] ~= 'active' or found[3] ~= tenant.id then return 'revoked' end
  if tonumber(found[2]) and tonumber(found[2]) <= now then return 'expired' end
end

local function hold(level, ask)
  minute_add(level.minute, level.minute.current, 1, 0, 0)
  level.live.requests = level.live.requests + 1
  level.held.input, level.held.output = level.held.input + ask.input, level.held.output + ask.output
  write_held(prefix, level)
end

local known = redis.call('HMGET', flight_key, 'state', 'choice', 'ceiling', 'shadowed', 'levels')
if known[1] == 'settled' then return {'settled'} end
if known[1] then
  local levels = open_levels(prefix, cjson.decode(known[5]), now, {})
  return {'granted', tonumber(known[2]), tonumber(known[3]), cjson.decode(known[4]), statuses(levels, now)}
end
local reason = barred()
if reason then return {'access', reason} end

local list = levels_of(tenant, key, ARGV[4], ARGV[5])
local levels = open_levels(prefix, list, now, {[tenant.id] = calendar_of(tenant.zone, now)})
find_paused(prefix, levels, now)
local ask = {requests = 1, input = tonumber(ARGV[6]), prompt = tonumber(ARGV[7]), ceiling = tonumber(ARGV[9]),
  choices = tonumber(ARGV[10]), stated = ARGV[11] == '1'}
size(levels, ask, tonumber(ARGV[12]))
local denied, shadowed = refusal(levels, ask, now)
if denied then return {'denied', denied.status, denied.amount, denied.retry, denied.kind} end

for _, level in ipairs(levels) do hold(level, ask) end
redis.call('HSET', flight_key, 'state', 'reserved', 'tenant', tenant.id, 'key', key, 'levels', cjson.encode(list),
  'model', ARGV[4], 'lane', ARGV[5], 'input', ask.input, 'output', ask.output, 'choice', ask.choice,
  'ceiling', ask.ceiling, 'shadowed', cjson.encode(shadowed), 'prompts', ARGV[8], 'slice', math.floor(now / SLICE_MS))
redis.call('ZADD', prefix .. 'leases', now + tonumber(ARGV[13]), flight_id)
return {'granted', ask.choice, ask.ceiling, shadowed, statuses(levels, now)}
