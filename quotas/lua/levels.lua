-- Stands before the budget's functions, after sliding.lua: the levels that a request must fit, each opened as one table:
-- its limits (by a rule's number), the rules that are set and its figures as of now. What a function may change of it,
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

local function open_level(prefix, scope, id, card, stored)
  local level = {scope = scope, id = id, key = prefix .. 'figures:' .. id, minute_key = prefix .. 'minute:' .. id,
    is_known = card, card = card or NO_CARD, shadow = NONE_IN_SHADOW, rules = {},
    figures = {struct.unpack(FIGURES, stored or NO_FIGURES)}, older = stored and string.sub(stored, FIGURES_BYTES + 1) or ''}
  local mask
  level.figures[ZERO] = 0
  level.limits = {struct.unpack(LIMITS, level.card, LIMITS_FROM)}
  level.state, level.number, mask = struct.unpack(CARD, level.card)
  if mask > 0 then level.shadow = in_shadow(mask) end
  for number = 1, #RULES do
    if level.limits[number] >= 0 then
      level.rules[#level.rules + 1] = RULES[number]
      level.is_paced = level.is_paced or RULES[number].is_paced
    end
  end
  return level
end
