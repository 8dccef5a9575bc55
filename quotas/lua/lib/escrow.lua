-- Precedes the budget's functions, last: escrow, rights that a gateway spends without a call (escrow.py). A table, since a script may
-- have 200 locals.
local escrow = {}

-- A pool's record: its state, the number of the last call that changed it, the number of the first reservation whose fate the
-- gateway has not reported, its rights (requests, input, output), the slice that counts the requests; then tenant, key, model, lane
-- and its other places as JSON. Its rights are held as those of one reservation, and its requests are counted in the minute's
-- current slice at each call: later than they were spent, and earlier than they are settled.
local POOL, POOL_FIELDS = '<dddddddsssss', 12
local P_STATE, P_CALL, P_FIRST, P_REQUESTS, P_INPUT, P_OUTPUT, P_SLICE = 1, 2, 3, 4, 5, 6, 7
local P_TENANT, P_KEY, P_MODEL, P_LANE, P_OTHERS = 8, 9, 10, 11, 12
local OPEN, REAPED, CLOSED = 1, 2, 3
local FEWEST, LEAST_FREE = 4, 10 -- a pool has four requests at least; none is granted of the last tenth of a limit

function escrow.key(prefix, pool) return prefix .. 'escrow:' .. pool end

function escrow.unpack(record) return {struct.unpack(POOL, record)} end

function escrow.pack(pool) return struct.pack(POOL, unpack(pool, 1, POOL_FIELDS)) end

function escrow.is_same(pool, tenant, key, model, lane)
  return pool[P_TENANT] == tenant and pool[P_KEY] == key and pool[P_MODEL] == model and pool[P_LANE] == lane
end

-- Counts a pool's rights as used at each level, or with -1 takes them back.
function escrow.count(levels, pool, sign)
  if pool[P_REQUESTS] == 0 then return end
  for _, level in ipairs(levels) do
    hold(level, sign, sign * pool[P_INPUT], sign * pool[P_OUTPUT], 0)
    if sign > 0 then
      minute_add(level, pool[P_REQUESTS], 0, 0)
    else
      minute_uncount(level, pool[P_SLICE], pool[P_REQUESTS])
    end
  end
end

-- Returns the part of the wanted rights that every level can spare, from 0 to 1: at most 1/share of what is free. Limits of money
-- and concurrency, limits in shadow, and levels with paused reservations spare nothing: there, the store decides each request.
function escrow.part(levels, wanted, share)
  local part = 1
  for _, level in ipairs(levels) do
    if level.shadow ~= NONE_IN_SHADOW or level.paused then return 0 end
    for _, rule in ipairs(level.rules) do
      local amount, limit = amount_of(wanted, rule), level.limits[rule.number]
      local free = limit - used(level, rule) - reserved(level, rule)
      if rule.window == 'live' or rule.is_spend then return 0 end
      if rule.window ~= 'request' and free * LEAST_FREE < limit then return 0 end
      if amount > 0 then part = math.min(part, free / (share * amount)) end
    end
  end
  return part
end

-- Sets a pool's new rights.
function escrow.grant(prefix, pool, levels, wanted, share, now)
  find_paused(prefix, levels, now)
  local part = wanted.requests > 0 and escrow.part(levels, wanted, share) or 0
  local requests = math.floor(wanted.requests * part)
  if requests < FEWEST then part, requests = 0, 0 end
  pool[P_REQUESTS], pool[P_INPUT], pool[P_OUTPUT] = requests, math.floor(wanted.input * part), math.floor(wanted.output * part)
  pool[P_SLICE] = levels[1].current
end

-- Returns the record of a pool's reservation that holds nothing, after counting its request.
function escrow.enter(pool, levels, prices)
  for _, level in ipairs(levels) do admit(level, 0, 0, 0) end
  return {0, 0, 0, 0, 0, 0, 1, levels[1].current, 0, 0, 0, 0, pool[P_TENANT], pool[P_KEY], pool[P_MODEL], pool[P_LANE], '',
    pool[P_OTHERS], 0, 0, '', 0, 0, prices[1], prices[2], prices[3], 0, 0, 0}
end

-- Brings a reservation's record to what its gateway reports: tokens held and charged since its start. Older figures change nothing.
function escrow.advance(prefix, reservation, levels, entry)
  local held_in, held_out, spend = held_input(reservation), held_output(reservation), held_spend(reservation)
  local input = math.max(0, entry.charged_input - reservation[F_CHARGED_INPUT])
  local output = math.max(0, entry.charged_output - reservation[F_CHARGED_OUTPUT])
  if input + output > 0 then usage_sums.turn_day(prefix, reservation, levels[1].figures[DAY]) end
  reservation[F_INPUT] = math.max(reservation[F_INPUT], entry.input)
  reservation[F_OUTPUT] = math.max(reservation[F_OUTPUT], entry.output)
  reservation[F_CHARGED_INPUT] = reservation[F_CHARGED_INPUT] + input
  reservation[F_CHARGED_OUTPUT] = reservation[F_CHARGED_OUTPUT] + output
  reservation[F_CHOICE] = math.max(reservation[F_CHOICE], entry.choice)
  reservation[F_CEILING] = math.max(reservation[F_CEILING], entry.ceiling)
  local charged = usage_sums.open_spend(reservation, input, output)
  for _, level in ipairs(levels) do
    hold(level, 0, held_input(reservation) - held_in, held_output(reservation) - held_out, held_spend(reservation) - spend)
    if input + output > 0 then charge(level, input, output, charged) end
  end
end
