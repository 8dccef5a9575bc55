-- Stands before extend and settle, after levels.lua and minute_add.lua: from reserved to used.
-- A flight is its record: tenant, key, model, lane, levels (JSON), input and output (tokens reserved from first to
-- last, those per choice times choices), charged_input, charged_output (of these what was charged), slice, since, …
local SPENT_DAYS = 70 -- a month's sums outlive it in every zone

local function flight_of(key)
  local stored, flight = redis.call('HGETALL', key), {}
  for i = 1, #stored, 2 do flight[stored[i]] = stored[i + 1] end
  if not flight.state or flight.state == 'settled' then return nil, flight.state end
  for _, field in ipairs({'input', 'output', 'charged_input', 'charged_output'}) do
    flight[field] = tonumber(flight[field]) or 0
  end
  flight.levels = cjson.decode(flight.levels)
  return flight
end

-- What a flight still holds of a field.
local function holds(flight, field) return math.max(0, flight[field] - flight['charged_' .. field]) end

-- Takes from what a level's flights hold; `write_held` writes it.
local function let_go(level, input, output)
  level.held.input, level.held.output = level.held.input - input, level.held.output - output
end

local function charge(prefix, level, input, output)
  minute_add(level.minute, level.minute.current, 0, input, output)
  local spent = prefix .. 'spent:' .. level.id .. ':' .. level.today.month
  level.day.input, level.month.input = level.day.input + input + output, level.month.input + input + output
  redis.call('HSET', spent, level.today.day, level.day.input, 'month', level.month.input)
  if level.day.is_new then redis.call('PEXPIRE', spent, SPENT_DAYS * DAY_MS) end
end
