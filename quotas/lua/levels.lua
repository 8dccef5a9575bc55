-- Stands before reserve, extend, settle and statuses, after rules.lua: what counts against each level that a request
-- must fit (scopes.lua), opened as one table of limits and figures. What a script may change of it, it changes there
-- and writes once.

-- Reads the limits of a level: figures by name, names in shadow, and the rules that are set, in their order.
local function open_limits(prefix, level)
  local stored = redis.call('HGETALL', prefix .. 'limits:' .. level.id)
  if #stored == 0 then return end
  for i = 1, #stored, 2 do level.limits[stored[i]] = tonumber(stored[i + 1]) end
  for _, rule in ipairs(RULES) do
    if level.limits[rule.name] then
      level.rules[#level.rules + 1] = rule
      level.shadow[rule.name] = level.limits['shadow:' .. rule.name]
      level.spends = level.spends or rule.kind == 'quota'
    end
  end
end

-- Days and months keep prompt and output as one sum, here under `input`; they are read where a limit or a charge needs
-- them.
local function open_level(prefix, scope, id, today, now, charges)
  local level = {scope = scope, id = id, today = today, limits = {}, rules = {}, shadow = {}, request = {}}
  open_limits(prefix, level)
  local held = redis.call('HMGET', prefix .. 'reserved:' .. id, 'requests', 'input', 'output')
  level.live = {requests = tonumber(held[1]) or 0}
  level.held = {input = tonumber(held[2]) or 0, output = tonumber(held[3]) or 0}
  level.minute = open_minute(prefix .. 'minute:' .. id, now)
  if charges or level.spends then
    local spent = redis.call('HMGET', prefix .. 'spent:' .. id .. ':' .. today.month, today.day, 'month')
    level.day = {input = tonumber(spent[1]) or 0, ends = today.day_ends, is_new = not spent[1]}
    level.month = {input = tonumber(spent[2]) or 0, ends = today.month_ends}
  end
  return level
end

-- `calendars`: of tenants whose zone the caller has read; `charges`: whether it will charge.
local function open_levels(prefix, list, now, calendars, charges)
  local levels = {}
  for i, place in ipairs(list) do
    local tenant = place[3]
    if not calendars[tenant] then
      calendars[tenant] = calendar_of(redis.call('HGET', prefix .. 'tenant:' .. tenant, 'zone'), now)
    end
    levels[i] = open_level(prefix, place[1], place[2], calendars[tenant], now, charges)
  end
  return levels
end

-- Writes what a level's flights hold. Without one in the air nothing can be: what a lost write left behind ends here.
local function write_held(prefix, level)
  local key = prefix .. 'reserved:' .. level.id
  if level.live.requests > 0 then
    redis.call('HSET', key, 'requests', level.live.requests, 'input', level.held.input, 'output', level.held.output)
  else
    redis.call('DEL', key)
    level.live.requests, level.held.input, level.held.output = 0, 0, 0
  end
end
