-- Stands before the budget's functions, after sliding.lua: the levels that a request must fit, each opened as one table:
-- what its card says, and its figures as of now. What a function may change of it,
-- it changes there, and writing.lua writes it once.
local NONE_IN_SHADOW = {}

local function in_shadow(mask)
  local found = {}
  for number, rule in ipairs(RULES) do found[rule.name] = math.floor(mask / 2 ^ (number - 1)) % 2 == 1 end
  return found
end

-- Makes figures those of today: another day than they are of has begun, or the tenant's zone was changed.
local function turn_day(prefix, level, tenant, zone, now)
  local figures = level.figures
  local stored = redis.call('HGET', prefix .. 'tenant:' .. tenant, 'zone')
  local today = calendar_at(stored and cjson.decode(stored) or {}, now)
  figures[DAY_BEGINS], figures[DAY_ENDS], figures[MONTH_ENDS] = today.begins, today.ends, today.month_ends
  figures[ZONE] = zone
  local before = figures[DAY]
  if before == today.number then return end
  if figures[DAY_SUM] > 0 then level.closing = {before, figures[DAY_SUM], figures[MONTH_SUM]} end
  local month, day = names_of(today.number)
  local spent = redis.call('HMGET', prefix .. 'spent:' .. level.id .. ':' .. month, day, 'month')
  figures[DAY], figures[DAY_SUM] = today.number, tonumber(spent[1]) or 0
  if math.floor(before / 100) ~= math.floor(today.number / 100) then figures[MONTH_SUM] = tonumber(spent[2]) or 0 end
end

-- What a card says: {limits (by a rule's number), rules (those that are set), shadow (by name), state, number, is_paced
-- (running requests may have to pause)}. Not remembered from call to call: the store's collector of garbage would go
-- through all of it again and again, which costs more than this.
local function parse(card)
  local state, number, mask = struct.unpack(CARD, card)
  local found = {limits = {struct.unpack(LIMITS, card, LIMITS_FROM)}, rules = {}, state = state, number = number,
    shadow = mask > 0 and in_shadow(mask) or NONE_IN_SHADOW, is_paced = false}
  for place = 1, #RULES do
    if found.limits[place] >= 0 then
      found.rules[#found.rules + 1] = RULES[place]
      found.is_paced = found.is_paced or RULES[place].is_paced
    end
  end
  return found
end

local function open_level(prefix, place, card, key, stored)
  local known = card or NO_CARD
  local of = parse(known)
  local level = {scope = place[1], id = place[2], prefix = prefix, key = key, is_known = card, card = known,
    limits = of.limits, rules = of.rules, shadow = of.shadow, state = of.state, number = of.number,
    is_paced = of.is_paced, older = '', now = 0, current = 0, figures = {struct.unpack(FIGURES, stored or NO_FIGURES)}}
  level.figures[ZERO] = 0
  if stored and #stored > FIGURES_BYTES then level.older = string.sub(stored, FIGURES_BYTES + 1) end
  return level
end
