-- Charges what a running flight has come to so far, and holds more for it before it needs that. Called by
-- RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 output tokens published so far, 3 output tokens that the caller knows to be held, from first to
--          last, 4 the most that it may come to, 5 choices that go on, 6 quantum per choice, 7 '1' where one of them has
--          used up what it has, 8 tokens of the prompts that have brought any
-- Returns  {output tokens held, from first to last; the limit that leaves nothing now, or ''; 1 where that is a day's or
--          month's and spent; when to ask again, ms; 1 where the flight is paused}, or false where it holds nothing
local prefix, flight_id = KEYS[1], ARGV[1]
local flight_key = prefix .. 'flight:' .. flight_id
local now = now_ms()
local flight = flight_of(flight_key)
if not flight then return false end
local levels = open_levels(prefix, flight.levels, now, {}, true)
find_paused(prefix, levels, now)

local input = math.min(holds(flight, 'input'), math.max(0, tonumber(ARGV[8]) - flight.charged_input))
local output = math.min(holds(flight, 'output'), math.max(0, tonumber(ARGV[2]) - flight.charged_output))
for _, level in ipairs(levels) do
  let_go(level, input, output)
  charge(prefix, level, input, output)
end
flight.charged_input, flight.charged_output = flight.charged_input + input, flight.charged_output + output

local unit = tonumber(ARGV[5])
local whole = portion(levels, tonumber(ARGV[6]), unit) * unit
local wanted = math.min(tonumber(ARGV[3]) + whole, tonumber(ARGV[4])) - flight.output
local since, served = tonumber(flight.since), tonumber(flight.served) or 0
local found = {tokens = 0, limited_by = '', spent = false, retry = 0, is_full = false}
if wanted >= unit then
  local place = since and {since, flight_id}
  found = more(levels, wanted - wanted % unit, unit, holds(flight, 'output'), place, now)
end
flight.output, served = flight.output + found.tokens, served + found.tokens

local is_stuck = ARGV[7] == '1' and found.tokens == 0 and not found.spent and found.is_full
local is_over = not is_stuck and (found.spent or served >= whole or wanted < unit)
if is_stuck and not since then since, served = now, 0 end
for _, level in ipairs(levels) do
  let_go(level, 0, 0 - found.tokens)
  write_held(prefix, level)
  local paused = prefix .. 'paused:' .. level.id
  if is_stuck and level.binds then
    redis.call('ZADD', paused, since, flight_id)
    redis.call('PEXPIRE', paused, 2 * MINUTE_MS + FORGOTTEN_MS)
  elseif since and (is_stuck or is_over) then
    redis.call('ZREM', paused, flight_id)
  end
end
if is_over then since = nil end
redis.call('HSET', flight_key, 'output', flight.output, 'charged_input', flight.charged_input, 'charged_output',
  flight.charged_output, 'since', since or '', 'served', served, 'asked', now)
return {flight.output, found.limited_by, found.spent and 1 or 0, found.retry, is_stuck and 1 or 0}
