-- Stands before reserve, settle and statuses, after levels.lua: limits as they stand, for replies.

-- Milliseconds, never negative, as seconds.
local function seconds(ms) return string.format('%d.%03d', ms / 1000, ms % 1000) end

-- A LimitStatus as its fields stand, in JSON: {name, scope, limit, used, reserved, resets at (s), s until then, in shadow}.
-- Written by hand, since cjson keeps 14 digits of a number and a limit may have 16.
local function status(level, rule, now)
  local taken, promised = used(level, rule), reserved(level, rule)
  local ends = level[rule.window].ends
  if ends and rule.window == 'minute' then
    ends = promised > 0 and now + MINUTE_MS or taken > 0 and ends or now
  end
  return string.format('["%s","%s",%d,%d,%d,%s,%s,%s]', rule.name, level.scope, level.limits[rule.name], taken, promised,
    ends and seconds(ends) or 'null', ends and seconds(ends - now) or '0', level.shadow[rule.name] and 'true' or 'false')
end

-- All of them as one JSON list.
local function statuses(levels, now)
  local all = {}
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do all[#all + 1] = status(level, rule, now) end
  end
  return '[' .. table.concat(all, ',') .. ']'
end
