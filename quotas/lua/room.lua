-- Stands before reserve and extend, after rules.lua: what the limits leave (see sizing.py).
local SHARE = 8

local function room_of(level, rule, prompt)
  local room = level.limits[rule.number] - used(level, rule) - reserved(level, rule)
  return rule.counts[1] == 'input' and room - prompt or room
end

-- When the level has room for what is too much now: ms by the store's clock, or nil where none leaves by itself.
local function frees(level, rule, excess)
  if rule.window == 'minute' then return minute_frees(level, excess, rule) end
  if rule.window == 'day' then return level.figures[DAY_ENDS] end
  if rule.window == 'month' then return level.figures[MONTH_ENDS] end
end

-- The most that one choice may come to; math.huge: no limit says.
local function ceiling_of(levels)
  local most = math.huge
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if rule.last == 'ceiling' and not level.shadow[rule.name] then most = math.min(most, level.limits[rule.number]) end
    end
  end
  return most
end

-- Output tokens per choice that are given at a time.
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
