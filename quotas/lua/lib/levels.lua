-- Precedes the budget's functions, after window.lua: the levels that a request must fit. Each is opened as one table with its
-- card and its current figures; functions change the table, and writes.lua writes it once.
local NONE_IN_SHADOW = {}

local function in_shadow(mask)
  local found = {}
  for number, rule in ipairs(RULES) do found[rule.name] = math.floor(mask / 2 ^ (number - 1)) % 2 == 1 end
  return found
end

-- Updates figures to today, after their day has ended. A change of the tenant's zone thus takes effect at the end of the current
-- day, so that no date's budget is given twice.
local function turn_day(prefix, level, tenant, now)
  local figures = level.figures
  local stored = redis.call('HGET', prefix .. 'tenant:' .. string.match(tenant, '^[^~]*'), 'zone')
  local today = calendar_at(stored and cjson.decode(stored) or {}, now)
  figures[DAY_BEGINS], figures[DAY_ENDS], figures[MONTH_ENDS] = today.begins, today.ends, today.month_ends
  local before = figures[DAY]
  if before == today.number then return end
  if figures[DAY_SUM] > 0 or figures[DAY_SPEND] > 0 then
    level.closing = {before, figures[DAY_SUM], figures[MONTH_SUM], figures[DAY_SPEND], figures[MONTH_SPEND]}
  end
  local month, day = names_of(today.number)
  local spent = redis.call('HMGET', prefix .. 'spent:' .. level.id .. ':' .. month, day, 'month', day .. ':spend', 'month:spend')
  figures[DAY], figures[DAY_SUM], figures[DAY_SPEND] = today.number, tonumber(spent[1]) or 0, tonumber(spent[3]) or 0
  if math.floor(before / 100) ~= math.floor(today.number / 100) then
    figures[MONTH_SUM], figures[MONTH_SPEND] = tonumber(spent[2]) or 0, tonumber(spent[4]) or 0
  end
end

-- Returns where the part after a card's limits begins.
local function tail_of(card)
  return CARD_BYTES + (select(3, struct.unpack(CARD, card)) >= WITH_SPEND and SPEND_BYTES or 0) + 1
end

-- Returns a level with its card's limits (by rule number), rules (those that are set), shadow (by name), state, number, and whether
-- it is paced: running requests may have to pause. Caching cards across calls costs more: the store's garbage collector keeps
-- traversing them.
local function open_level(prefix, place, card, key, stored)
  local known = card or NO_CARD
  local state, number, mask = struct.unpack(CARD, known)
  local level = {scope = place[1], id = place[2], prefix = prefix, key = key, is_known = card, card = known, state = state,
    number = number, limits = {struct.unpack(LIMITS, known, LIMITS_FROM)}, rules = {}, shadow = NONE_IN_SHADOW, is_paced = false,
    now = 0, current = 0}
  local last = OF_TOKENS
  if mask >= WITH_SPEND then
    level.limits[OF_TOKENS + 1], level.limits[OF_TOKENS + 2] = struct.unpack(SPEND_LIMITS, known, CARD_BYTES + 1)
    mask, last = mask - WITH_SPEND, #RULES
  end
  if mask > 0 then level.shadow = in_shadow(mask) end
  for rule_number = 1, last do
    if level.limits[rule_number] >= 0 then
      level.rules[#level.rules + 1] = RULES[rule_number]
      level.is_paced = level.is_paced or RULES[rule_number].is_paced
    end
  end
  level.is_limited = level.rules[1] ~= nil
  level.figures, level.older = unpack_figures(stored)
  return level
end

-- Opens places {scope, id of limits and figures, tenant whose zone defines its days} and appends them to `levels`. The
-- tenant's own is always the first.
local function open_levels(prefix, places, now, levels)
  local names = {}
  for number, place in ipairs(places) do
    names[2 * number - 1], names[2 * number] = prefix .. 'card:' .. place[2], prefix .. 'figures:' .. place[2]
  end
  local stored = redis.call('MGET', unpack(names)) -- at most two for each level of a request
  for number, place in ipairs(places) do
    local level = open_level(prefix, place, stored[2 * number - 1], names[2 * number], stored[2 * number])
    levels[#levels + 1] = level
    slide(level, now)
    if now < level.figures[DAY_BEGINS] or now >= level.figures[DAY_ENDS] then turn_day(prefix, level, place[3], now) end
  end
  return levels
end

-- Returns the places of a tenant and of its key, if any.
local function places_of(tenant, key)
  return {{'tenant', 'tenant:' .. tenant, tenant}, key ~= '' and {'key', 'key:' .. key, tenant} or nil}
end

-- Returns a request's places in addition to tenant and key, by the tenant's card: those of its model and lane, and of the tenants
-- above.
local function other_places(card, tenant, model, lane)
  local tail, places = string.sub(card, tail_of(card)), {}
  if tail == '' then return places end
  local named = cjson.decode(tail)
  for _, by in ipairs(named[1]) do
    if (by[1] == '' or by[1] == model) and (by[2] == '' or by[2] == lane) then
      places[#places + 1] = {'model_lane', 'by:' .. tenant .. ':' .. by[2] .. ':' .. by[1], tenant}
    end
  end
  for _, parent in ipairs(named[2]) do places[#places + 1] = {'parent', 'tenant:' .. parent, parent} end
  return places
end

-- Opens all levels of a request. Also returns those of its places that other_places names, as JSON, or '' if there are none.
local function open_request(prefix, tenant, key, model, lane, now)
  local levels = open_levels(prefix, places_of(tenant, key), now, {})
  local places = other_places(levels[1].card, tenant, model, lane)
  if #places == 0 then return levels, '' end
  return open_levels(prefix, places, now, levels), cjson.encode(places)
end

-- Restricts levels to the rules for batch lines. Minute and concurrency limits are reserved for interactive requests, so batch
-- lines are neither refused by them nor counted in them.
local function for_batch(levels)
  for _, level in ipairs(levels) do
    local rules = {}
    for _, rule in ipairs(level.rules) do
      if rule.of_batches then rules[#rules + 1] = rule end
    end
    level.rules, level.is_paced, level.is_batch = rules, false, true
  end
end

-- Returns why a tenant or one above it may not be used, or nil.
local function barred_tenant(levels)
  for _, level in ipairs(levels) do
    if level.scope == 'tenant' or level.scope == 'parent' then
      if level.state ~= ACTIVE then return STATES[level.state] or 'deleted' end
    end
  end
end

-- Returns why a new request may not use its tenant or key, or nil.
local function barred(levels, tenant, now)
  local reason = barred_tenant(levels)
  if reason then return reason end
  local key = levels[2]
  if not key or key.scope ~= 'key' then return nil end
  if key.state ~= ACTIVE or string.sub(key.card, tail_of(key.card)) ~= tenant then return 'revoked' end
  if key.number > 0 and key.number <= now then return 'expired' end
end
