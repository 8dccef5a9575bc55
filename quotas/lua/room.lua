-- Stands before reserve and extend, after levels.lua: what the limits leave (see sizing.py).
local SHARE = 8

-- Calls visit(level, rule, figure, last field that the rule counts) for each rule that refuses.
local function each_metering(levels, visit)
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if not level.shadow[rule.name] then visit(level, rule, level.limits[rule.name], rule.counts[#rule.counts]) end
    end
  end
end

local function each_output(levels, visit)
  each_metering(levels, function(level, rule, figure, last)
    if last == 'output' then visit(level, rule, figure) end
  end)
end

local function is_paced(rule) return rule.window == 'minute' and rule.counts[#rule.counts] == 'output' end

local function room_of(level, rule, figure, prompt)
  local room = figure - used(level, rule) - reserved(level, rule)
  return rule.counts[1] == 'input' and room - prompt or room
end

-- When the level has room for what is too much now: ms by the store's clock, or nil where none leaves by itself.
local function frees(level, rule, excess)
  if rule.window == 'minute' then return minute_frees(level.minute, excess, rule.counts) end
  return level[rule.window].ends
end

-- Output tokens per choice that are given at a time.
local function portion(levels, quantum, choices)
  local tokens = quantum
  each_output(levels, function(_, rule, figure)
    if rule.window == 'minute' then tokens = math.min(tokens, math.floor(math.floor(figure / SHARE) / choices)) end
  end)
  return math.max(1, tokens)
end
