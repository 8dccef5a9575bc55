-- Holds the tokens of one request against every limit of every level, all or nothing. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 tenant, 3 key or '', 4 levels as JSON [[scope, id], …], 5 model, 6 lane, 7 prompt tokens,
--          8 of them in the longest prompt, 9 prompts, 10 output tokens per choice, 11 choices of all prompts,
--          12 '1' where the caller stated 10, 13 lease ms
-- Returns  {'granted', output tokens per choice, shadowed names, statuses}, or having written nothing:
--          {'denied', status, requested, retry ms or -1, kind}, {'access', reason}, {'settled'}
local prefix, flight_id, tenant, key = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local flight_key = prefix .. 'flight:' .. flight_id
local now = now_ms()

local function barred()
  local state = redis.call('HGET', prefix .. 'tenant:' .. tenant, 'state') or 'deleted'
  if state ~= 'active' then return state end
  if key == '' then return nil end
  local found = redis.call('HMGET', prefix .. 'key:' .. key, 'state', 'expires_ms', 'tenant')
  if found[1] ~= 'active' or found[3] ~= tenant then return 'revoked' end
  if tonumber(found[2]) and tonumber(found[2]) <= now then return 'expired' end
end

local function hold(level, ask)
  minute_add(level.minute, level.minute.current, 1, 0, 0)
  local held = prefix .. 'reserved:' .. level.id
  level.live.requests = redis.call('HINCRBY', held, 'requests', 1)
  level.held.input = redis.call('HINCRBY', held, 'input', ask.input)
  level.held.output = redis.call('HINCRBY', held, 'output', ask.output)
end

local known = redis.call('HMGET', flight_key, 'state', 'granted', 'shadowed', 'levels')
if known[1] == 'settled' then return {'settled'} end
if known[1] then
  return {'granted', tonumber(known[2]), cjson.decode(known[3]), statuses(open_levels(prefix, tenant, known[4], now), now)}
end
local reason = barred()
if reason then return {'access', reason} end

local levels = open_levels(prefix, tenant, ARGV[4], now)
local ask = {requests = 1, input = tonumber(ARGV[7]), prompt = tonumber(ARGV[8]), choices = tonumber(ARGV[11])}
set_choice(ask, tonumber(ARGV[10]))
if ARGV[12] ~= '1' then cut_to_room(levels, ask) end
local denied, shadowed = refusal(levels, ask, now)
if denied then return {'denied', denied.status, denied.amount, denied.retry, denied.kind} end

for _, level in ipairs(levels) do hold(level, ask) end
redis.call('HSET', flight_key, 'state', 'reserved', 'tenant', tenant, 'key', key, 'levels', ARGV[4], 'model', ARGV[5],
  'lane', ARGV[6], 'prompt', ask.input, 'output', ask.output, 'granted', ask.choice, 'shadowed', cjson.encode(shadowed),
  'prompts', ARGV[9], 'slice', math.floor(now / SLICE_MS))
redis.call('ZADD', prefix .. 'leases', now + tonumber(ARGV[13]), flight_id)
return {'granted', ask.choice, shadowed, statuses(levels, now)}
