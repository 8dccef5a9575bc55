-- Precedes the budget's functions, first: the layout of a level's card and figures (packing.py has the same). They are doubles,
-- so that one call reads and one writes them. No Lua library is available while functions are loaded, so constants are literal.
-- A card: state (1 active, 2 suspended, 3 deleted, 4 revoked), a key's expiry (ms, or 0),
-- shadow (a bit per rule), ten limits (-1: none); if the shadow has the bit WITH_SPEND, two limits of money; then a tenant's
-- models, lanes and tenants above as JSON, or a key's tenant.
local CARD, LIMITS, CARD_BYTES, LIMITS_FROM = '<ddd', '<dddddddddd', 104, 25
local WITH_SPEND, SPEND_LIMITS, SPEND_BYTES = 1048576, '<dd', 16
local OF_TOKENS = 10 -- limits that every card has
local ACTIVE, DELETED, STATES = 1, 3, {'active', 'suspended', 'deleted', 'revoked'}
local NONE = '\0\0\0\0\0\0\240\191' -- -1 as a double
local ZEROS = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- three doubles
local NO_CARD = ZEROS .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE

-- Figures, by index. A base index precedes three figures: requests, input, output.
local HELD = 0 -- base of what open reservations hold
local AT, SLICE = 4, 4 -- number of the newest slice, and base of its figures
local MINUTE = 7 -- base of the sums of all current slices
local OLDEST, FIRST, LAST = 11, 12, 13 -- numbers of the oldest current slice, and of the first and last in the hash
local DAY_SUM, MONTH_SUM, DAY = 14, 15, 16 -- tokens charged; the day as 20261121
local DAY_BEGINS, DAY_ENDS, MONTH_ENDS = 17, 18, 19 -- 20 is not used
local PAUSED = 21 -- 1 if reservations may wait here
local BATCH = 21 -- base of what batch lines hold; stored only if they hold anything
local HELD_SPEND, DAY_SPEND, MONTH_SPEND = 25, 26, 27 -- money in nano-units; stored after BATCH if there is any
local ZERO = 28 -- always 0; not stored
local FIGURES, FIGURES_BYTES = '<ddddddddddddddddddddd', 168
local BATCH_FIGURES, BATCH_BYTES = '<ddd', 24
local SPEND_FIGURES, WITH_SPEND_BYTES = '<dddddd', 48 -- BATCH and money
local NO_FIGURES = ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS
local SLICE_FORMAT, SLICE_BYTES = '<dddd', 32 -- {number, requests, input, output}: older slices, after the figures

-- Returns a level's figures, and its older slices, packed.
local function unpack_figures(stored)
  local figures = {struct.unpack(FIGURES, stored or NO_FIGURES)}
  local from, beside = FIGURES_BYTES, stored and (#stored - FIGURES_BYTES) % SLICE_BYTES or 0
  figures[BATCH + 1], figures[BATCH + 2], figures[BATCH + 3] = 0, 0, 0
  figures[HELD_SPEND], figures[DAY_SPEND], figures[MONTH_SPEND], figures[ZERO] = 0, 0, 0, 0
  if beside > 0 then
    figures[BATCH + 1], figures[BATCH + 2], figures[BATCH + 3] = struct.unpack(BATCH_FIGURES, stored, from + 1)
    if beside ~= BATCH_BYTES then
      figures[HELD_SPEND], figures[DAY_SPEND], figures[MONTH_SPEND] = struct.unpack(BATCH_FIGURES, stored, from + BATCH_BYTES + 1)
    end
    from = from + (beside == BATCH_BYTES and BATCH_BYTES or WITH_SPEND_BYTES)
  end
  return figures, stored and string.sub(stored, from + 1) or ''
end

local function pack_figures(figures)
  local packed = struct.pack(FIGURES, unpack(figures, 1, PAUSED))
  if figures[HELD_SPEND] > 0 or figures[MONTH_SPEND] > 0 or figures[DAY_SPEND] > 0 then
    return packed .. struct.pack(SPEND_FIGURES, unpack(figures, BATCH + 1, MONTH_SPEND)) -- at most six figures
  end
  if figures[BATCH + 1] == 0 then return packed end
  return packed .. struct.pack(BATCH_FIGURES, unpack(figures, BATCH + 1, BATCH + 3)) -- at most three figures
end

-- The same table as RULES in limits.py.
local RULES = {
  {name = 'requests_per_minute', window = 'minute', counts = {'requests'}, kind = 'rate'},
  {name = 'tokens_per_minute', window = 'minute', counts = {'input', 'output'}, kind = 'rate'},
  {name = 'input_tokens_per_minute', window = 'minute', counts = {'input'}, kind = 'rate'},
  {name = 'output_tokens_per_minute', window = 'minute', counts = {'output'}, kind = 'rate'},
  {name = 'tokens_per_day', window = 'day', counts = {'input', 'output'}, kind = 'quota'},
  {name = 'tokens_per_month', window = 'month', counts = {'input', 'output'}, kind = 'quota'},
  {name = 'concurrent_requests', window = 'live', counts = {'requests'}, kind = 'concurrency'},
  {name = 'queued_requests', window = 'request', counts = {}, kind = 'exceeds'},
  {name = 'max_prompt_tokens', window = 'request', counts = {'prompt'}, kind = 'exceeds'},
  {name = 'max_output_tokens', window = 'request', counts = {'ceiling'}, kind = 'exceeds'},
  {name = 'spend_per_day', window = 'day', counts = {'spend'}, kind = 'quota'},
  {name = 'spend_per_month', window = 'month', counts = {'spend'}, kind = 'quota'},
}

-- Indices of a window's figures; a day and a month have one sum of prompt and output.
local USED_AT = {
  minute = {requests = MINUTE + 1, input = MINUTE + 2, output = MINUTE + 3},
  day = {input = DAY_SUM, spend = DAY_SPEND},
  month = {input = MONTH_SUM, spend = MONTH_SPEND},
  live = {requests = HELD + 1},
  request = {},
}
local HELD_AT = {input = HELD + 2, output = HELD + 3, spend = HELD_SPEND} -- money includes batch lines'
local IN_CALENDAR = {day = true, month = true} -- windows in which batch lines count, too

for number = 1, #RULES do
  local rule = RULES[number]
  local one, two = rule.counts[1], rule.counts[2]
  local used, held = USED_AT[rule.window], rule.window == 'request' and {} or HELD_AT
  rule.number, rule.last = number, rule.counts[#rule.counts]
  rule.is_spend = rule.last == 'spend'
  rule.is_paced = rule.window == 'minute' and rule.last == 'output' -- running requests pause at this limit
  rule.used_one, rule.used_two = used[one] or ZERO, used[two or ''] or ZERO
  rule.held_one, rule.held_two = held[one] or ZERO, held[two or ''] or ZERO
  rule.batch_one = IN_CALENDAR[rule.window] and not rule.is_spend and BATCH + 2 or ZERO
  rule.batch_two = IN_CALENDAR[rule.window] and not rule.is_spend and BATCH + 3 or ZERO
  rule.of_batches = IN_CALENDAR[rule.window] or rule.window == 'request' -- applies to batch lines, too
end

local function used(level, rule) return level.figures[rule.used_one] + level.figures[rule.used_two] end

local function reserved(level, rule)
  local figures = level.figures
  return figures[rule.held_one] + figures[rule.held_two] + figures[rule.batch_one] + figures[rule.batch_two]
end

-- Returns how much of an ask a rule counts.
local function amount_of(ask, rule)
  local counts = rule.counts
  return (ask[counts[1]] or 0) + (ask[counts[2]] or 0)
end

-- Returns how much one more output token counts; 0 if output does not count or is free.
local function output_weight(rule, prices)
  return rule.last == 'output' and 1 or rule.is_spend and prices.output or 0
end

-- A reservation's record, one packed value. INPUT and OUTPUT are tokens reserved since the start, CHARGED_… the part that was
-- charged, and CREDIT_… the part of that which earlier runs under its idempotency key had paid for. SHADOWED lists the numbers
-- of shadow rules that would have refused it, and OTHERS its places in addition to tenant and key as JSON, or ''. ONCE and
-- ONCE_UNTIL are the fields of its `Once`. Prices are in nano-units, as of the reservation. PAST has the day of the last
-- charge (0: none yet), and the tokens that are in the ledger's sums of earlier days.
local RESERVATION, RESERVATION_FIELDS = '<ddddddddddddssssssddsdddddddd', 29
-- Appended to records, for the fields that an older gateway's record lacks.
local NO_CREDIT = ZEROS .. ZEROS .. ZEROS .. '\0\0\0\0\0\0\0\0\0'
local F_INPUT, F_OUTPUT, F_CHARGED_INPUT, F_CHARGED_OUTPUT, F_CHOICE, F_CEILING = 1, 2, 3, 4, 5, 6
local F_PROMPTS, F_SLICE, F_IS_PAUSED, F_SINCE, F_SERVED, F_ASKED = 7, 8, 9, 10, 11, 12
local F_TENANT, F_KEY, F_MODEL, F_LANE, F_SHADOWED, F_OTHERS = 13, 14, 15, 16, 17, 18
local F_CREDIT_INPUT, F_CREDIT_OUTPUT, F_ONCE, F_ONCE_UNTIL, F_IS_BATCH = 19, 20, 21, 22, 23
local F_INPUT_PRICE, F_CACHED_PRICE, F_OUTPUT_PRICE = 24, 25, 26
local PAST = {day = 27, input = 28, output = 29} -- a table: a script may have 200 locals
local PRICES = '<ddd' -- per prompt, cached and output token

-- The record of a settled reservation: SETTLED, then the name of the call that settled it, tenant, key and other places, with
-- which a repeat of that call is answered.
local SETTLED, SETTLED_FIELDS = 'settled', 'ssss'

local function is_settled(record) return record and string.sub(record, 1, #SETTLED) == SETTLED end

local function unpack_reservation(record) return {struct.unpack(RESERVATION, record .. NO_CREDIT)} end

local function pack_reservation(reservation) return struct.pack(RESERVATION, unpack(reservation, 1, RESERVATION_FIELDS)) end

local function held_input(reservation) return math.max(0, reservation[F_INPUT] - reservation[F_CHARGED_INPUT]) end

local function held_output(reservation) return math.max(0, reservation[F_OUTPUT] - reservation[F_CHARGED_OUTPUT]) end

-- Includes, for charged prompt tokens, the price difference to cached ones: their number is only known at the end.
local function held_spend(reservation)
  local beyond_cached = reservation[F_INPUT_PRICE] - reservation[F_CACHED_PRICE]
  return held_input(reservation) * reservation[F_INPUT_PRICE] + held_output(reservation) * reservation[F_OUTPUT_PRICE] +
    (reservation[F_CHARGED_INPUT] - reservation[F_CREDIT_INPUT]) * beyond_cached
end

-- A day's sums for a lane, model and key: requests, prompt, cached and output tokens, money in nano-units, microseconds of
-- accelerators, milliseconds of KV blocks. Sums written by older gateways lack the last three.
local USAGE, NO_USAGE = '<ddddddd', ZEROS .. ZEROS .. '\0\0\0\0\0\0\0\0'
local NO_COSTS, USAGE_FIGURES = ZEROS, 7

local function unpack_usage(sums) return struct.unpack(USAGE, (sums or NO_USAGE) .. NO_COSTS) end
