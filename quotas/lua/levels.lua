-- Stands before reserve, extend, settle and statuses, after rules.lua: what counts against each level that a request
-- must fit (scopes.lua), opened as one table of limits and figures.

-- Days and months keep prompt and output as one sum, here under `input`.
local function open_level(prefix, level, today, now)
  local scope, id = level[1], level[2]
  local opened = {scope = scope, id = id, today = today, limits = {}, request = {}}
  local stored = redis.call('HGETALL', prefix .. 'limits:' .. id)
  for i = 1, #stored, 2 do opened.limits[stored[i]] = tonumber(stored[i + 1]) end
  local held = redis.call('HMGET', prefix .. 'reserved:' .. id, 'requests', 'input', 'output')
  opened.live = {requests = tonumber(held[1]) or 0}
  opened.held = {input = tonumber(held[2]) or 0, output = tonumber(held[3]) or 0}
  opened.minute = open_minute(prefix .. 'minute:' .. id, now)
  local spent = redis.call('HMGET', prefix .. 'spent:' .. id .. ':' .. today.month, today.day, 'month')
  opened.day = {input = tonumber(spent[1]) or 0, ends = today.day_ends}
  opened.month = {input = tonumber(spent[2]) or 0, ends = today.month_ends}
  return opened
end

local function open_levels(prefix, list, now)
  local calendars, levels = {}, {}
  for i, level in ipairs(list) do
    local tenant = level[3]
    calendars[tenant] = calendars[tenant] or tenant_calendar(prefix, tenant, now)
    levels[i] = open_level(prefix, level, calendars[tenant], now)
  end
  return levels
end

-- A LimitStatus as its fields stand, in JSON: {name, scope, limit, used, reserved, resets at (s), s until then, in shadow}.
-- Written by hand, since cjson keeps 14 digits of a number and a limit may have 16.
local function status(level, rule, now)
  local taken, promised = used(level, rule), reserved(level, rule)
  local ends = level[rule.window].ends
  if ends and rule.window == 'minute' then
    ends = promised > 0 and now + MINUTE_MS or taken > 0 and ends or now
  end
  return string.format('["%s","%s",%.0f,%.0f,%.0f,%s,%.3f,%s]', rule.name, level.scope, level.limits[rule.name], taken,
    promised, ends and string.format('%.3f', ends / 1000) or 'null', ends and (ends - now) / 1000 or 0,
    level.limits['shadow:' .. rule.name] and 'true' or 'false')
end

-- All of them as one JSON list.
local function statuses(levels, now)
  local all = {}
  for _, level in ipairs(levels) do
    for _, rule in ipairs(RULES) do
      if level.limits[rule.name] then all[#all + 1] = status(level, rule, now) end
    end
  end
  return '[' .. table.concat(all, ',') .. ']'
end
