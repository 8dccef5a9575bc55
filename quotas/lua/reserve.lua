-- Holds the tokens of one request against every limit of every level, all or nothing. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 reservation, 2 tenant, 3 key or '', 4 model, 5 lane, 6 prompt tokens, 7 of them in the longest prompt,
--          8 prompts, 9 output tokens per choice, 10 choices of all prompts, 11 '1' where the caller stated 9,
--          12 quantum per choice or 0 to hold all at once, 13 lease ms, 14 name of its idempotency key's request, or '',
--          15 until when that is known, ms; what it goes on from: 16 output tokens, 17 those of choices that are over,
--          18 choices that go on, 19 tokens of the longest of these
-- Returns  {'granted', output tokens per choice held, the most per choice, numbers of the rules refused in shadow, now ms,
--          how the levels stand}, or having written nothing: {'denied', number of the rule, requested, retry ms or -1,
--          1 where it can never fit, now ms, how the level stands}, {'access', reason}, {'settled'}
local prefix, reservation_id, tenant, key = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local reservation_key, now = prefix .. 'reservation:' .. reservation_id, now_ms()

local known = redis.call('GET', reservation_key)
if known == SETTLED then return {'settled'} end
if known then
  local reservation = unpack_reservation(known)
  return tell({'granted', reservation[F_CHOICE], reservation[F_CEILING], reservation[F_SHADOWED], now}, levels_of(prefix, reservation, now))
end
local levels = open_levels(prefix, places_of(tenant, key), now, {})
local others, named = others_of(levels[1], tenant, ARGV[4], ARGV[5])
if #others > 0 then open_levels(prefix, others, now, levels) end
local reason = barred(levels, tenant, now)
if reason then return {'access', reason} end

find_paused(prefix, levels, now)
local input, begun, going, longest = tonumber(ARGV[6]), tonumber(ARGV[16]), tonumber(ARGV[18]), tonumber(ARGV[19])
local in_paid, out_paid = 0, 0
if begun > 0 and ARGV[14] ~= '' then in_paid, out_paid = paid_for(prefix, ARGV[14], now) end
in_paid, out_paid = math.min(in_paid, input), math.min(out_paid, begun)
local lag = going * longest - (begun - ARGV[17])
local ask = {requests = 1, input = input - in_paid, prompt = tonumber(ARGV[7]), ceiling = tonumber(ARGV[9]),
  choices = going, stated = ARGV[11] == '1', start = longest, owed = lag + begun - out_paid, choice = 0, output = 0}
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
local granted = ask.start + ask.choice
write_levels(prefix, levels, reservation_key, struct.pack(RESERVATION, input, out_paid + ask.output, in_paid, out_paid, granted,
  ask.ceiling, ARGV[8], levels[1].current, 0, 0, 0, 0, tenant, key, ARGV[4], ARGV[5], shadowed, named, in_paid, out_paid,
  ARGV[14], ARGV[15]))
note_run(prefix, ARGV[14], tonumber(ARGV[15]), reservation_id, now)
redis.call('ZADD', prefix .. 'leases', now + ARGV[13], reservation_id)
return tell({'granted', granted, ask.ceiling, shadowed, now}, levels)
