-- Stands before the budget's functions and expired: a flight's record, one packed value; `settled` once it is over.
-- Numbers: tokens reserved from first to last (those per choice times choices), of these what was charged, …; texts: …,
-- the numbers of the rules refused in shadow, and the places beyond tenant and key as JSON, or ''; last, of what was
-- charged, tokens that an earlier run under its idempotency key had paid for, the name of that key's request, or '', and
-- until when that is known, ms.
local SETTLED = 'settled'
local FLIGHT, FLIGHT_FIELDS = '<ddddddddddddssssssddsd', 22
-- Behind a record of an older gateway; behind others it is not read.
local NO_CREDIT = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local F_INPUT, F_OUTPUT, F_CHARGED_INPUT, F_CHARGED_OUTPUT, F_CHOICE, F_CEILING = 1, 2, 3, 4, 5, 6
local F_PROMPTS, F_SLICE, F_IS_PAUSED, F_SINCE, F_SERVED, F_ASKED = 7, 8, 9, 10, 11, 12
local F_TENANT, F_KEY, F_MODEL, F_LANE, F_SHADOWED, F_OTHERS = 13, 14, 15, 16, 17, 18
local F_CREDIT_INPUT, F_CREDIT_OUTPUT, F_ONCE, F_ONCE_UNTIL = 19, 20, 21, 22

local function unpack_flight(record) return {struct.unpack(FLIGHT, record .. NO_CREDIT)} end

local function pack_flight(flight) return struct.pack(FLIGHT, unpack(flight, 1, FLIGHT_FIELDS)) end

-- What a flight still holds.
local function held_input(flight) return math.max(0, flight[F_INPUT] - flight[F_CHARGED_INPUT]) end

local function held_output(flight) return math.max(0, flight[F_OUTPUT] - flight[F_CHARGED_OUTPUT]) end

-- A day's sums of a lane, model and key: requests, prompt, cached and output tokens.
local USAGE, NO_USAGE = '<dddd',
  '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
