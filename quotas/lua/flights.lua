-- Stands before the budget's functions, after places.lua, writing.lua and flight.lua: a flight's levels, and its charge.

local function levels_of(prefix, flight, now)
  local levels = open_levels(prefix, places_of(flight[F_TENANT], flight[F_KEY]), now, {})
  return flight[F_OTHERS] == '' and levels or open_levels(prefix, cjson.decode(flight[F_OTHERS]), now, levels)
end

-- Adds to what a level's flights hold.
local function hold(level, requests, input, output) add_to(level.figures, HELD, requests, input, output) end

-- Of tokens that are to be charged to a flight beyond what it was, those that no run under its idempotency key has paid
-- for: together all its runs pay for the one that came furthest.
local PAID_MS = 86400000
local function unpaid(prefix, flight, input, output, now)
  if flight[F_ONCE] == '' then return input, output end
  local key = prefix .. 'paid:' .. flight[F_ONCE]
  local paid = redis.call('HMGET', key, 'input', 'output', 'until_ms')
  if (tonumber(paid[3]) or 0) <= now then paid = {} end
  local in_all, out_all = flight[F_CHARGED_INPUT] + input, flight[F_CHARGED_OUTPUT] + output
  local in_paid, out_paid = tonumber(paid[1]) or 0, tonumber(paid[2]) or 0
  local in_due = math.max(0, math.min(input, in_all - in_paid))
  local out_due = math.max(0, math.min(output, out_all - out_paid))
  redis.call('HSET', key, 'input', math.max(in_all, in_paid), 'output', math.max(out_all, out_paid),
    'until_ms', now + PAID_MS)
  redis.call('PEXPIRE', key, PAID_MS)
  flight[F_CREDIT_INPUT] = flight[F_CREDIT_INPUT] + input - in_due
  flight[F_CREDIT_OUTPUT] = flight[F_CREDIT_OUTPUT] + output - out_due
  return in_due, out_due
end

local function charge(level, input, output)
  local figures = level.figures
  minute_add(level, 0, input, output)
  figures[DAY_SUM], figures[MONTH_SUM] = figures[DAY_SUM] + input + output, figures[MONTH_SUM] + input + output
end
