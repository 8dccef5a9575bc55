-- Charges what a running flight has come to so far, and holds more for it before it needs that: nothing more where its
-- tenant was suspended or deleted. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 output tokens published so far, 3 output tokens that the caller knows to be held, from first to
--          last, 4 the most that it may come to, 5 choices that go on, 6 quantum per choice, 7 '1' where one of them has
--          used up what it has, 8 tokens of the prompts that have brought any, 9 published tokens of the choices that
--          go on no more
-- Returns  {output tokens held, from first to last; the limit that leaves nothing now, or ''; 1 where no time brings
--          more; when to ask again, ms; 1 where the flight is paused}, or false where it holds nothing
local BARRED_MS = 1000 -- its gateway is about to hear of it
local prefix, flight_id = KEYS[1], ARGV[1]
local flight_key, now = prefix .. 'flight:' .. flight_id, now_ms()
local record = redis.call('GET', flight_key)
if not record or record == SETTLED then return false end
local flight = unpack_flight(record)
local levels = levels_of(prefix, flight, now)
find_paused(prefix, levels, now)

local input = math.min(held_input(flight), math.max(0, tonumber(ARGV[8]) - flight[F_CHARGED_INPUT]))
local output = math.min(held_output(flight), math.max(0, tonumber(ARGV[2]) - flight[F_CHARGED_OUTPUT]))
local in_due, out_due = unpaid(prefix, flight, input, output, now)
for _, level in ipairs(levels) do
  hold(level, 0, -input, -output)
  charge(level, in_due, out_due)
end
flight[F_CHARGED_INPUT], flight[F_CHARGED_OUTPUT] = flight[F_CHARGED_INPUT] + input, flight[F_CHARGED_OUTPUT] + output

local unit = tonumber(ARGV[5])
local whole = portion(levels, tonumber(ARGV[6]), unit) * unit
local asked_most = tonumber(ARGV[4])
local most = math.min(asked_most, tonumber(ARGV[9]) + ceiling_of(levels) * unit)
local is_barred = barred_tenant(levels) ~= nil
local wanted = is_barred and 0 or math.min(tonumber(ARGV[3]) + whole, most) - flight[F_OUTPUT]
local was_paused = flight[F_IS_PAUSED] == 1
local found = {tokens = 0, limited_by = '', is_spent = false, retry = is_barred and BARRED_MS or 0, is_full = false}
if wanted >= unit then
  local place = was_paused and {flight[F_SINCE], flight_id}
  found = more(levels, {tokens = wanted - wanted % unit, unit = unit}, held_output(flight), place, now)
elseif most < asked_most and most - flight[F_OUTPUT] < unit then
  found.limited_by, found.is_spent = 'max_output_tokens', true
end
flight[F_OUTPUT], flight[F_SERVED], flight[F_ASKED] = flight[F_OUTPUT] + found.tokens, flight[F_SERVED] + found.tokens, now

local is_stuck = ARGV[7] == '1' and found.tokens == 0 and not found.is_spent and found.is_full
local is_over = not is_stuck and (found.is_spent or flight[F_SERVED] >= whole or wanted < unit)
if is_stuck and not was_paused then flight[F_IS_PAUSED], flight[F_SINCE], flight[F_SERVED] = 1, now, 0 end
if is_over then flight[F_IS_PAUSED] = 0 end
for _, level in ipairs(levels) do
  hold(level, 0, 0, found.tokens)
  local paused = paused_key(level)
  if is_stuck and level.binds then
    level.figures[PAUSED] = 1
    redis.call('ZADD', paused, flight[F_SINCE], flight_id)
    redis.call('PEXPIRE', paused, 2 * MINUTE_MS + FORGOTTEN_MS)
  elseif was_paused and (is_stuck or is_over) then
    redis.call('ZREM', paused, flight_id)
  end
end
write_levels(prefix, levels, flight_key, pack_flight(flight))
return {flight[F_OUTPUT], found.limited_by, found.is_spent and 1 or 0, found.retry, is_stuck and 1 or 0}
