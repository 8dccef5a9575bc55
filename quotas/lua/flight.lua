-- Stands before the budget's functions and expired: a flight's record, one packed value; `settled` once it is over.
-- Numbers: tokens reserved from first to last (those per choice times choices), of these what was charged, …; texts: …,
-- the numbers of the rules refused in shadow, and the places beyond tenant and key as JSON, or ''.
local SETTLED = 'settled'
local FLIGHT = '<ddddddddddddssssss'

local function pack_flight(flight)
  return struct.pack(FLIGHT, flight.input, flight.output, flight.charged_input, flight.charged_output, flight.choice,
    flight.ceiling, flight.prompts, flight.slice, flight.is_paused, flight.since, flight.served, flight.asked,
    flight.tenant, flight.key, flight.model, flight.lane, flight.shadowed, flight.others)
end

local function unpack_flight(record)
  local input, output, charged_input, charged_output, choice, ceiling, prompts, slice, is_paused, since, served, asked,
    tenant, key, model, lane, shadowed, others = struct.unpack(FLIGHT, record)
  return {input = input, output = output, charged_input = charged_input, charged_output = charged_output,
    choice = choice, ceiling = ceiling, prompts = prompts, slice = slice, is_paused = is_paused, since = since,
    served = served, asked = asked, tenant = tenant, key = key, model = model, lane = lane, shadowed = shadowed,
    others = others}
end

-- What a flight still holds.
local function held_input(flight) return math.max(0, flight.input - flight.charged_input) end

local function held_output(flight) return math.max(0, flight.output - flight.charged_output) end

-- A day's sums of a lane, model and key: requests, prompt, cached and output tokens.
local USAGE, NO_USAGE = '<dddd',
  '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
