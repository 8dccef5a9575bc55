-- Stands before the budget's functions, first: how a level's card and figures are packed (packing.py has the same). All
-- are doubles, so that one call reads and one writes them. Where functions are loaded, no library of
-- Lua's is there: hence constants are written out.
-- A card: state (1 active, 2 suspended, 3 deleted, 4 revoked), zone (a number for its name; of a key: when it expires,
-- ms, or 0), shadow (a bit for each rule), ten limits (-1: none); where the shadow has the bit of WITH_SPEND the two of
-- money; after them a tenant's models, lanes and tenants above as JSON, or a key's tenant.
local CARD, LIMITS, CARD_BYTES, LIMITS_FROM = '<ddd', '<dddddddddd', 104, 25
local WITH_SPEND, SPEND_LIMITS, SPEND_BYTES = 1048576, '<dd', 16
local OF_TOKENS = 10 -- limits that every card has
local ACTIVE, DELETED, STATES = 1, 3, {'active', 'suspended', 'deleted', 'revoked'}
local NONE = '\0\0\0\0\0\0\240\191' -- -1 as a double
local ZEROS = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- three doubles
local NO_CARD = ZEROS .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE .. NONE

-- Figures, by their place. A slice and the minute have three: requests, input, output.
local HELD = 0 -- before what open reservations hold: requests, input, output
local AT, SLICE = 4, 4 -- the number of the newest slice, and before its three
local MINUTE = 7 -- before the sums of all slices that count
local OLDEST, FIRST, LAST = 11, 12, 13 -- slices: the oldest that counts; from which to which they stand in a hash
local DAY_SUM, MONTH_SUM, DAY = 14, 15, 16 -- tokens charged; which day: 20261121
local DAY_BEGINS, DAY_ENDS, MONTH_ENDS, ZONE = 17, 18, 19, 20
local PAUSED = 21 -- 1 where reservations may wait here
local BATCH = 21 -- before what lines of batches hold, beside that: stored only where it is not nothing
local HELD_SPEND, DAY_SPEND, MONTH_SPEND = 25, 26, 27 -- money, in nano-units: stored behind BATCH where there is some
local ZERO = 28 -- always 0; not stored
local FIGURES, FIGURES_BYTES = '<ddddddddddddddddddddd', 168
local BATCH_FIGURES, BATCH_BYTES = '<ddd', 24
local SPEND_FIGURES, WITH_SPEND_BYTES = '<dddddd', 48 -- BATCH and money
local NO_FIGURES = ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS .. ZEROS
local SLICE_FORMAT, SLICE_BYTES = '<dddd', 32 -- {number, requests, input, output}: older slices, after the figures

-- A level's figures, and what stands behind them: its older slices, packed.
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

-- What each limit counts, and in which window (RULES of
-- limits.py).
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

-- Where a window's figures stand; a day and a month have one sum of prompt and output.
local STAND = {
  minute = {requests = MINUTE + 1, input = MINUTE + 2, output = MINUTE + 3},
  day = {input = DAY_SUM, spend = DAY_SPEND},
  month = {input = MONTH_SUM, spend = MONTH_SPEND},
  live = {requests = HELD + 1},
  request = {},
}
local PROMISED = {input = HELD + 2, output = HELD + 3, spend = HELD_SPEND} -- money: of lines of batches, too
local IN_CALENDAR = {day = true, month = true} -- windows for which lines of batches count, too

for number = 1, #RULES do
  local rule = RULES[number]
  local one, two = rule.counts[1], rule.counts[2]
  local used, held = STAND[rule.window], rule.window == 'request' and {} or PROMISED
  rule.number, rule.last = number, rule.counts[#rule.counts]
  rule.is_spend = rule.last == 'spend'
  rule.is_paced = rule.window == 'minute' and rule.last == 'output' -- running requests pause at this limit
  rule.used_one, rule.used_two = used[one] or ZERO, used[two or ''] or ZERO
  rule.held_one, rule.held_two = held[one] or ZERO, held[two or ''] or ZERO
  rule.batch_one = IN_CALENDAR[rule.window] and not rule.is_spend and BATCH + 2 or ZERO
  rule.batch_two = IN_CALENDAR[rule.window] and not rule.is_spend and BATCH + 3 or ZERO
  rule.of_batches = IN_CALENDAR[rule.window] or rule.window == 'request' -- it refuses lines of batches, too
end

local function used(level, rule) return level.figures[rule.used_one] + level.figures[rule.used_two] end

local function reserved(level, rule)
  local figures = level.figures
  return figures[rule.held_one] + figures[rule.held_two] + figures[rule.batch_one] + figures[rule.batch_two]
end

-- What a rule counts of an ask.
local function amount_of(ask, rule)
  local counts = rule.counts
  return (ask[counts[1]] or 0) + (ask[counts[2]] or 0)
end

-- What a rule counts of one more output token: nothing where it does not count output, or output is free.
local function output_weight(rule, prices)
  return rule.last == 'output' and 1 or rule.is_spend and prices.output or 0
end

-- A reservation's record, one packed value.
-- Numbers: tokens reserved from first to last (those per choice times choices), of these what was charged, …; texts: …,
-- the numbers of the rules refused in shadow, and the places beyond tenant and key as JSON, or ''; last, of what was
-- charged, tokens that an earlier run under its idempotency key had paid for, the name of that key's request, or '',
-- until when that is known, ms, and 1 where it is a line of a batch; prices of a prompt token, of a cached one and of an
-- output token, in nano-units, as they were when it was reserved; the day of the last charge (0: none yet), and the prompt
-- and output tokens that are in the ledger's sums of earlier days.
local RESERVATION, RESERVATION_FIELDS = '<ddddddddddddssssssddsdddddddd', 29
-- Behind a record of an older gateway; behind others it is not read.
local NO_CREDIT = ZEROS .. ZEROS .. ZEROS .. '\0\0\0\0\0\0\0\0\0'
local F_INPUT, F_OUTPUT, F_CHARGED_INPUT, F_CHARGED_OUTPUT, F_CHOICE, F_CEILING = 1, 2, 3, 4, 5, 6
local F_PROMPTS, F_SLICE, F_IS_PAUSED, F_SINCE, F_SERVED, F_ASKED = 7, 8, 9, 10, 11, 12
local F_TENANT, F_KEY, F_MODEL, F_LANE, F_SHADOWED, F_OTHERS = 13, 14, 15, 16, 17, 18
local F_CREDIT_INPUT, F_CREDIT_OUTPUT, F_ONCE, F_ONCE_UNTIL, F_IS_BATCH = 19, 20, 21, 22, 23
local F_INPUT_PRICE, F_CACHED_PRICE, F_OUTPUT_PRICE = 24, 25, 26
local PAST = {day = 27, input = 28, output = 29} -- a table: a script may have 200 locals
local PRICES = '<ddd' -- of a prompt token, of a cached one, of an output token

-- Once it is over: SETTLED, the name of the call that settled it, and its tenant, key and other places, by which a repeat
-- of that call is answered.
local SETTLED, SETTLED_FIELDS = 'settled', 'ssss'

local function is_settled(record) return record and string.sub(record, 1, #SETTLED) == SETTLED end

local function unpack_reservation(record) return {struct.unpack(RESERVATION, record .. NO_CREDIT)} end

local function pack_reservation(reservation) return struct.pack(RESERVATION, unpack(reservation, 1, RESERVATION_FIELDS)) end

-- What a reservation still holds.
local function held_input(reservation) return math.max(0, reservation[F_INPUT] - reservation[F_CHARGED_INPUT]) end

local function held_output(reservation) return math.max(0, reservation[F_OUTPUT] - reservation[F_CHARGED_OUTPUT]) end

-- The money that it holds: of what was charged of its prompts, too, what they cost more if no cache had them; how much
-- of them one had is known at the end.
local function held_spend(reservation)
  local beyond_cached = reservation[F_INPUT_PRICE] - reservation[F_CACHED_PRICE]
  return held_input(reservation) * reservation[F_INPUT_PRICE] + held_output(reservation) * reservation[F_OUTPUT_PRICE] +
    (reservation[F_CHARGED_INPUT] - reservation[F_CREDIT_INPUT]) * beyond_cached
end

-- A day's sums of a lane, model and key: requests, prompt, cached and output tokens, money in nano-units, and what workers
-- measured: microseconds of accelerators, milliseconds of KV blocks. An older gateway's end with the tokens.
local USAGE, NO_USAGE = '<ddddddd', ZEROS .. ZEROS .. '\0\0\0\0\0\0\0\0'
local NO_COSTS, USAGE_FIGURES = ZEROS, 7

local function unpack_usage(sums) return struct.unpack(USAGE, (sums or NO_USAGE) .. NO_COSTS) end
