-- Holds the tokens of one request against every limit of every level, all or nothing. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 tenant, 3 key or '', 4 model, 5 lane, 6 prompt tokens, 7 of them in the longest prompt,
--          8 prompts, 9 output tokens per choice, 10 choices of all prompts, 11 '1' where the caller stated 9,
--          12 quantum per choice or 0 to hold all at once, 13 lease ms, 14 name of its idempotency key's request, or ''
-- Returns  {'granted', output tokens per choice held, the most per choice, numbers of the rules refused in shadow, now ms,
--          how the levels stand}, or having written nothing: {'denied', number of the rule, requested, retry ms or -1,
--          1 where it can never fit, now ms, how the level stands}, {'access', reason}, {'settled'}
local prefix, flight_id, tenant, key = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local flight_key, now = prefix .. 'flight:' .. flight_id, now_ms()

local known = redis.call('GET', flight_key)
if known == SETTLED then return {'settled'} end
if known then
  local flight = unpack_flight(known)
  return tell({'granted', flight[F_CHOICE], flight[F_CEILING], flight[F_SHADOWED], now}, levels_of(prefix, flight, now))
end
local levels = open_levels(prefix, places_of(tenant, key), now, {})
local others, named = others_of(levels[1], tenant, ARGV[4], ARGV[5])
if #others > 0 then open_levels(prefix, others, now, levels) end
local reason = barred(levels, tenant, now)
if reason then return {'access', reason} end

find_paused(prefix, levels, now)
local ask = {requests = 1, input = tonumber(ARGV[6]), prompt = tonumber(ARGV[7]), ceiling = tonumber(ARGV[9]),
  choices = tonumber(ARGV[10]), stated = ARGV[11] == '1', choice = 0, output = 0}
size(levels, ask, tonumber(ARGV[12]))
local denied, shadowed = refusal(levels, ask, now)
if denied then
  local reply = {'denied', denied.rule.number, denied.amount, denied.retry, denied.never and 1 or 0, now}
  return tell(reply, {denied.level})
end

for _, level in ipairs(levels) do
  minute_add(level, 1, 0, 0)
  hold(level, 1, ask.input, ask.output)
end
write_levels(prefix, levels, flight_key, struct.pack(FLIGHT, ask.input, ask.output, 0, 0, ask.choice, ask.ceiling,
  ARGV[8], levels[1].current, 0, 0, 0, 0, tenant, key, ARGV[4], ARGV[5], shadowed, named, 0, 0,
  ARGV[14]))
redis.call('ZADD', prefix .. 'leases', now + ARGV[13], flight_id)
return tell({'granted', ask.choice, ask.ceiling, shadowed, now}, levels)
