-- Precedes reserve and extend, after levels.lua. sizing.py explains these rules.

-- Paused reservations wait for room in a level's minute, oldest first. One whose gateway has not asked for it for this long is
-- dropped from the queue: the gateway died, and the reservation will be settled when its lease lapses.
local FORGOTTEN_MS, MOST_FORGOTTEN = 5000, 16

local function is_before(one, other) return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2]) end

local function paused_key(level) return level.prefix .. 'paused:' .. level.id end

local function oldest_paused(prefix, level, now)
  local paused = paused_key(level)
  for _ = 1, MOST_FORGOTTEN do
    local head = redis.call('ZRANGE', paused, 0, 0, 'WITHSCORES')
    if not head[1] then
      level.figures[PAUSED] = 0
      return nil
    end
    local record = redis.call('GET', prefix .. 'reservation:' .. head[1])
    local asked = record and not is_settled(record) and unpack_reservation(record)[F_ASKED]
    if asked and now - asked <= FORGOTTEN_MS then return {tonumber(head[2]), head[1]} end
    redis.call('ZREM', paused, head[1])
  end
end

-- Sets each level's longest-waiting reservation.
local function find_paused(prefix, levels, now)
  for _, level in ipairs(levels) do
    if level.figures[PAUSED] > 0 and level.is_paced then
      level.paused = oldest_paused(prefix, level, now)
    end
  end
end

local SHARE = 8

-- Returns the output tokens that a rule has room for in addition to a prompt.
local function room_of(level, rule, prompt, prices)
  local room = level.limits[rule.number] - used(level, rule) - reserved(level, rule)
  if rule.is_spend then return math.floor((room - prompt * prices.input) / prices.output) end
  return rule.counts[1] == 'input' and room - prompt or room
end

-- Returns when the excess will have expired, in ms of the store's clock, or nil if it does not expire by itself.
local function frees(level, rule, excess)
  if rule.window == 'minute' then return minute_frees(level, excess, rule) end
  if rule.window == 'day' then return level.figures[DAY_ENDS] end
  if rule.window == 'month' then return level.figures[MONTH_ENDS] end
end

-- Returns the maximum output tokens of one choice; math.huge if there is no limit.
local function ceiling_of(levels)
  local most = math.huge
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if rule.last == 'ceiling' and not level.shadow[rule.name] then most = math.min(most, level.limits[rule.number]) end
    end
  end
  return most
end

-- Returns the output tokens per choice to grant at a time.
local function portion(levels, quantum, choices)
  local tokens = quantum
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if rule.is_paced and not level.shadow[rule.name] then
        tokens = math.min(tokens, math.floor(math.floor(level.limits[rule.number] / SHARE) / choices))
      end
    end
  end
  return math.max(1, tokens)
end

-- Prices are {input, cached, output} in nano-units per token. An ask is {requests, input, prompt (the longest), ceiling (most
-- per choice), start (tokens that the longest choice resumes from), choice (tokens to hold per choice in addition), choices
-- (that resume), extra (tokens to hold in addition to those of the choices), output (tokens to hold in all), stated (whether
-- the caller asked for the ceiling)}.

-- Sets what a request holds first; with quantum 0, everything at once.
local function size(levels, ask, quantum, prices)
  local metered, room = false, math.huge
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if output_weight(rule, prices) > 0 then
        metered, room = true, math.min(room, level.shadow[rule.name] and room or room_of(level, rule, ask.input, prices))
      end
    end
  end
  if not ask.stated then ask.ceiling = math.max(1, math.min(ask.ceiling, ceiling_of(levels))) end
  ask.choice, ask.is_cut = math.max(0, ask.ceiling - ask.start), quantum > 0 or not ask.stated
  if ask.choices == 0 then ask.choice = 0 end
  if ask.choice > 0 and ask.is_cut then
    if quantum > 0 and metered then ask.choice = math.min(ask.choice, portion(levels, quantum, ask.choices)) end
    ask.choice = math.max(1, math.min(ask.choice, math.floor((room - ask.extra) / ask.choices)))
  end
  if quantum == 0 then ask.ceiling = ask.start + ask.choice end
  ask.output = ask.choice * ask.choices + ask.extra
  ask.spend = ask.input * prices.input + ask.output * prices.output
end

-- Returns how much of an ask a rule counts: first, and in all. A limit in shadow has not cut the ask, and counts the least that
-- it could be cut to.
local function amounts_of(ask, rule, shadow, prices)
  local amount, weight = amount_of(ask, rule), output_weight(rule, prices)
  local later = math.max(0, ask.ceiling - ask.start - ask.choice) * ask.choices
  local most = ask.stated and amount + later * weight or amount
  if not shadow then return amount, most end
  if ask.is_cut then amount = amount - (ask.choice - math.min(1, ask.choice)) * ask.choices * weight end
  if rule.last == 'ceiling' and not ask.stated then amount = 1 end
  return amount, ask.stated and most or amount
end

-- Returns the refusal with the highest weight (it can never fit, or takes longest) or nil, and the numbers of shadow rules that
-- would refuse.
local function refusal(levels, ask, now, prices)
  local heaviest, shadowed = nil, ''
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      local figure, shadow = level.limits[rule.number], level.shadow[rule.name]
      local amount, most = amounts_of(ask, rule, shadow, prices)
      local excess = used(level, rule) + reserved(level, rule) + amount - figure
      if level.paused and rule.is_paced and not shadow then excess = math.max(1, excess) end
      if most <= figure and (excess <= 0 or amount <= 0) then
        -- fits
      elseif shadow then
        shadowed = shadowed .. rule.number .. ','
      else
        local never = most > figure
        local free = not never and frees(level, rule, excess)
        local weight = never and math.huge or free and free - now or 0
        if not heaviest or weight > heaviest.weight then
          heaviest = {level = level, rule = rule, amount = never and most or amount, never = never,
            retry = free and free - now or -1, weight = weight}
        end
      end
    end
  end
  return heaviest, shadowed
end

local BLOCKED_MS = (MINUTE_MS - MINUTE_MS % 120) / 120

-- Returns the minimum tokens of the reservations that come first: one each.
local function before(level, place)
  if not place then return redis.call('ZCARD', paused_key(level)) end
  return redis.call('ZCOUNT', paused_key(level), '-inf', string.format('(%.0f', place[1]))
end

-- Updates `found` with what one rule leaves.
local function look(found, level, rule, wanted, own, place, now)
  local unit, room = wanted.unit, room_of(level, rule, 0, wanted.prices)
  local behind = rule.is_paced and level.paused and (not place or is_before(level.paused, place))
  found.tokens = math.min(found.tokens, behind and 0 or math.max(0, room))
  if room >= unit and not behind then return end
  found.full = found.full or rule.name
  if rule.window == 'minute' then
    level.binds, found.is_full = true, true
    local missing = unit - room + (behind and before(level, place) or 0)
    found.retry = math.max(found.retry, missing > 0 and minute_frees(level, missing, rule) - now or BLOCKED_MS)
  elseif level.limits[rule.number] - used(level, rule) - (rule.is_spend and own.spend or own.output) <
    unit * output_weight(rule, wanted.prices) then
    found.spent = found.spent or rule.name
  else
    found.retry = math.max(found.retry, BLOCKED_MS)
  end
end

-- Returns the output that a running request, which holds `own` {output, spend}, gets of `wanted` {tokens, unit, prices}, in
-- multiples of the unit: {tokens, limited_by (name or ''), is_spent, retry (ms), is_full (a minute is)}. Sets `binds` on levels
-- whose minute is in the way.
local function more(levels, wanted, own, place, now)
  local found = {tokens = wanted.tokens, retry = 0, is_full = false}
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if output_weight(rule, wanted.prices) > 0 and not level.shadow[rule.name] then look(found, level, rule, wanted, own, place, now) end
    end
  end
  found.tokens = found.tokens - found.tokens % wanted.unit
  found.limited_by, found.is_spent = found.spent or found.full or '', found.spent ~= nil
  return found
end
