-- Precedes the budget's functions, after window.lua: writing levels, and charging reservations.
local SPENT_MS = 70 * DAY_MS -- a month's sums outlive it in every zone
local MOST_BESIDE = 8 * SLICE_BYTES -- bytes of older slices after the figures, before they move to the hash

-- Writes what a level stores outside its figures, for the few calls where that changes.
local function write_beside(prefix, level)
  local figures = level.figures
  if level.is_rebuilt then
    redis.call('DEL', minute_key(level))
  elseif level.left then
    redis.call('HDEL', minute_key(level), unpack(level.left)) -- at most the SLICES of a minute
  end
  if #level.older > MOST_BESIDE then
    local fields, first, last = {}, nil, nil
    for from = 1, #level.older, SLICE_BYTES do
      last = struct.unpack('<d', level.older, from)
      first = first or last
      fields[#fields + 1] = string.format('%d', last)
      fields[#fields + 1] = string.sub(level.older, from, from + SLICE_BYTES - 1)
    end
    redis.call('HSET', minute_key(level), unpack(fields)) -- at most two for each of SLICES
    redis.call('PEXPIRE', minute_key(level), 2 * MINUTE_MS)
    if figures[FIRST] == 0 then figures[FIRST] = first end
    figures[LAST], level.older = last, ''
  end
  if level.closing then
    local month, day = names_of(level.closing[1])
    local spent = prefix .. 'spent:' .. level.id .. ':' .. month
    redis.call('HSET', spent, day, level.closing[2], 'month', level.closing[3])
    if level.closing[5] > 0 then
      redis.call('HSET', spent, day .. ':spend', level.closing[4], 'month:spend', level.closing[5])
    end
    redis.call('PEXPIRE', spent, SPENT_MS)
  end
end

-- Writes levels and other values: `values` has names and values of keys in turn. Without open reservations nothing can be held, so
-- leftovers of a lost write are cleared here. Figures of a deleted level expire.
local function write_values(prefix, levels, values)
  local size = #values
  for _, level in ipairs(levels) do
    if level.figures[HELD + 1] < 1 then clear(level.figures, HELD) end
    if level.figures[BATCH + 1] < 1 then clear(level.figures, BATCH) end
    if level.figures[HELD_SPEND] ~= 0 and level.figures[HELD + 1] < 1 and level.figures[BATCH + 1] < 1 then
      level.figures[HELD_SPEND] = 0
    end
    if level.is_rebuilt or level.left or level.closing or #level.older > MOST_BESIDE then write_beside(prefix, level) end
    level.packed = pack_figures(level.figures) .. level.older
    values[size + 1], values[size + 2] = level.key, level.packed
    size = size + 2
  end
  redis.call('MSET', unpack(values, 1, size)) -- at most two for each level, and for each of a call's reservations
  for _, level in ipairs(levels) do
    if not level.is_known or level.state == DELETED then redis.call('PEXPIRE', level.key, SPENT_MS) end
  end
end

local function write_levels(prefix, levels, reservation_key, record) write_values(prefix, levels, {reservation_key, record}) end

-- Appends scope, card and figures of each level with limits to a reply, as packing.py reads them.
local function with_figures(reply, levels)
  local size = #reply
  for _, level in ipairs(levels) do
    if level.is_limited then
      reply[size + 1], reply[size + 2] = level.scope, level.card
      reply[size + 3] = level.packed or pack_figures(level.figures)
      size = size + 3
    end
  end
  return reply
end

local function levels_at(prefix, tenant, key, others, now)
  local levels = open_levels(prefix, places_of(tenant, key), now, {})
  if others ~= '' then open_levels(prefix, cjson.decode(others), now, levels) end
  return levels
end

local function levels_of(prefix, reservation, now)
  local levels = levels_at(prefix, reservation[F_TENANT], reservation[F_KEY], reservation[F_OTHERS], now)
  if reservation[F_IS_BATCH] == 1 then for_batch(levels) end
  return levels
end

-- Adds to what a level's reservations hold.
local function hold(level, requests, input, output, spend)
  local figures = level.figures
  add_to(figures, level.is_batch and BATCH or HELD, requests, input, output)
  if spend ~= 0 then figures[HELD_SPEND] = figures[HELD_SPEND] + spend end
end

-- Counts a new request, and what it holds.
local function admit(level, input, output, spend)
  if not level.is_batch then minute_add(level, 1, 0, 0) end
  hold(level, 1, input, output, spend)
end

local KEPT_MORE_MS = 60000 -- tolerates a clock that steps back
local MOST_RUNS = 8

-- Returns what the runs under an idempotency key have paid for: input, output, and its expiry.
local function paid_for(prefix, once, now)
  local paid = redis.call('HMGET', prefix .. 'paid:' .. once, 'input', 'output', 'until_ms')
  if (tonumber(paid[3]) or 0) <= now then return 0, 0, 0 end
  return tonumber(paid[1]), tonumber(paid[2]), tonumber(paid[3])
end

-- Returns the packed prices that the first run under an idempotency key has fixed, or nil.
local function fixed_prices(prefix, once, now)
  local fixed = redis.call('HGET', prefix .. 'paid:' .. once, 'prices')
  if fixed and struct.unpack('<d', fixed) > now then return string.sub(fixed, 9) end
end

-- Returns the packed prices of a run: those of the first one under its idempotency key, else the given ones, '' for none.
local function prices_for(prefix, once, prices, now)
  local fixed = once ~= '' and fixed_prices(prefix, once, now)
  return fixed or (prices == '' and ZEROS or prices)
end

-- Records a run under an idempotency key, so that the next one can resume from its output, and fixes the prices of later runs.
local function note_run(prefix, once, until_ms, reservation_id, prices, now)
  if once == '' or until_ms <= now then return end
  local runs, paid = prefix .. 'runs:' .. once, prefix .. 'paid:' .. once
  redis.call('ZADD', runs, now, reservation_id)
  redis.call('ZREMRANGEBYRANK', runs, 0, -1 - MOST_RUNS)
  redis.call('PEXPIRE', runs, until_ms - now)
  if fixed_prices(prefix, once, now) then return end
  redis.call('HSET', paid, 'prices', struct.pack('<d', until_ms) .. prices)
  redis.call('PEXPIRE', paid, until_ms - now + KEPT_MORE_MS)
end

-- Returns the part of newly charged tokens that no run under the idempotency key has paid for: together, all its runs pay for
-- the one that got furthest.
local function unpaid(prefix, reservation, input, output, now)
  if reservation[F_ONCE] == '' then return input, output end
  local in_paid, out_paid, until_ms = paid_for(prefix, reservation[F_ONCE], now)
  local in_all, out_all = reservation[F_CHARGED_INPUT] + input, reservation[F_CHARGED_OUTPUT] + output
  local in_due = math.max(0, math.min(input, in_all - in_paid))
  local out_due = math.max(0, math.min(output, out_all - out_paid))
  local key = prefix .. 'paid:' .. reservation[F_ONCE]
  until_ms = math.max(until_ms, reservation[F_ONCE_UNTIL])
  redis.call('HSET', key, 'input', math.max(in_all, in_paid), 'output', math.max(out_all, out_paid), 'until_ms', until_ms)
  redis.call('PEXPIRE', key, math.max(0, until_ms - now) + KEPT_MORE_MS)
  reservation[F_CREDIT_INPUT] = reservation[F_CREDIT_INPUT] + input - in_due
  reservation[F_CREDIT_OUTPUT] = reservation[F_CREDIT_OUTPUT] + output - out_due
  return in_due, out_due
end

local function charge(level, input, output, spend)
  local figures = level.figures
  if not level.is_batch then minute_add(level, 0, input, output) end
  figures[DAY_SUM], figures[MONTH_SUM] = figures[DAY_SUM] + input + output, figures[MONTH_SUM] + input + output
  if spend ~= 0 then
    figures[DAY_SPEND], figures[MONTH_SPEND] = figures[DAY_SPEND] + spend, figures[MONTH_SPEND] + spend
  end
end

-- The ledger's sums of usage; a table, since a script may have only 200 locals.
local usage_sums = {}

function usage_sums.add(prefix, reservation, day, requests, prompt, cached, output, spend, gpu_us, kv_block_ms)
  local month, of_month = names_of(day)
  local usage = prefix .. 'usage:' .. reservation[F_TENANT] .. ':' .. month .. '-' .. of_month
  local group = reservation[F_LANE] .. '\t' .. reservation[F_MODEL] .. '\t' .. reservation[F_KEY]
  local of_requests, of_prompt, of_cached, of_output, of_spend, of_gpu, of_kv = unpack_usage(redis.call('HGET', usage, group))
  redis.call('HSET', usage, group, struct.pack(USAGE, of_requests + requests, of_prompt + prompt, of_cached + cached,
    of_output + output, of_spend + spend, of_gpu + gpu_us, of_kv + kv_block_ms))
end

-- Returns the charge while the reservation is open: prompt tokens at the price of cached ones, until its end.
function usage_sums.open_spend(reservation, input, output)
  return input * reservation[F_CACHED_PRICE] + output * reservation[F_OUTPUT_PRICE]
end

-- Before a charge: if the last one was on an earlier day, adds what was charged by then to that day's sums, so that the ledger
-- splits a request at midnight as the quotas do.
function usage_sums.turn_day(prefix, reservation, day)
  local last = reservation[PAST.day]
  reservation[PAST.day] = day
  if last == 0 or last == day then return end
  local input = reservation[F_CHARGED_INPUT] - reservation[F_CREDIT_INPUT] - reservation[PAST.input]
  local output = reservation[F_CHARGED_OUTPUT] - reservation[F_CREDIT_OUTPUT] - reservation[PAST.output]
  if input + output == 0 then return end
  usage_sums.add(prefix, reservation, last, 0, input, 0, output, usage_sums.open_spend(reservation, input, output), 0, 0)
  reservation[PAST.input] = reservation[PAST.input] + input
  reservation[PAST.output] = reservation[PAST.output] + output
end
