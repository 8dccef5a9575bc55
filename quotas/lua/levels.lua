-- Stands before reserve and statuses, after rules.lua: one level's limits and what counts against them.
-- A level is {scope, id}: whose limits they are, and under which id limits and figures are kept.

-- Days and months keep prompt and output as one sum, here under `input`.
local function open_level(prefix, scope, id, today, now)
  local level = {scope = scope, id = id, limits = {}, request = {}}
  local stored = redis.call('HGETALL', prefix .. 'limits:' .. id)
  for i = 1, #stored, 2 do level.limits[stored[i]] = tonumber(stored[i + 1]) end
  local held = redis.call('HMGET', prefix .. 'reserved:' .. id, 'requests', 'input', 'output')
  level.live = {requests = tonumber(held[1]) or 0}
  level.held = {input = tonumber(held[2]) or 0, output = tonumber(held[3]) or 0}
  level.minute = open_minute(prefix .. 'minute:' .. id, now)
  local spent = redis.call('HMGET', prefix .. 'spent:' .. id .. ':' .. today.month, today.day, 'month')
  level.day = {input = tonumber(spent[1]) or 0, ends = today.day_ends}
  level.month = {input = tonumber(spent[2]) or 0, ends = today.month_ends}
  return level
end

-- {scope, name, limit, used, reserved, resets at ms or -1, ms until then, 1 = in shadow}
local function status(level, rule, now)
  local taken, promised = used(level, rule), reserved(level, rule)
  local ends = level[rule.window].ends
  if ends and rule.window == 'minute' then
    ends = promised > 0 and now + MINUTE_MS or taken > 0 and ends or now
  end
  return {level.scope, rule.name, level.limits[rule.name], taken, promised, ends or -1, ends and ends - now or 0,
    level.limits['shadow:' .. rule.name] and 1 or 0}
end

local function open_levels(prefix, tenant, list, now)
  local today, levels = tenant_calendar(prefix, tenant, now), {}
  for i, level in ipairs(cjson.decode(list)) do levels[i] = open_level(prefix, level[1], level[2], today, now) end
  return levels
end

local function statuses(levels, now)
  local all = {}
  for _, level in ipairs(levels) do
    for _, rule in ipairs(RULES) do
      if level.limits[rule.name] then all[#all + 1] = status(level, rule, now) end
    end
  end
  return all
end
