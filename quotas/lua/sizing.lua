-- Stands before reserve, after levels.lua: how much one request gets, and why it does not fit.
-- An ask is {requests, input, prompt (the longest), choice (output tokens per choice), choices, output (of all)}.

local function set_choice(ask, choice)
  ask.choice, ask.output = choice, choice * ask.choices
end

-- Cuts the output to what the limits leave, at least one token per choice.
local function cut_to_room(levels, ask)
  local choice = ask.choice
  for _, level in ipairs(levels) do
    for _, rule in ipairs(RULES) do
      local figure = level.limits[rule.name]
      local last = rule.counts[#rule.counts]
      if figure and not level.limits['shadow:' .. rule.name] and (last == 'output' or last == 'choice') then
        local room = figure - used(level, rule) - reserved(level, rule)
        if rule.counts[1] == 'input' then room = room - ask.input end
        choice = math.min(choice, last == 'choice' and room or math.floor(room / ask.choices))
      end
    end
  end
  set_choice(ask, math.max(1, choice))
end

-- When the level has room for what is too much now: ms by the store's clock, or nil where none leaves by itself.
local function frees(level, rule, excess)
  if rule.window == 'minute' then return minute_frees(level.minute, excess, rule.counts) end
  return level[rule.window].ends
end

-- The heaviest refusal (what can never fit, else what takes longest), or nil; and the names refused in shadow.
local function refusal(levels, ask, now)
  local heaviest, shadowed = nil, {}
  for _, level in ipairs(levels) do
    for _, rule in ipairs(RULES) do
      local figure, amount = level.limits[rule.name], sum(ask, rule.counts)
      local excess = figure and used(level, rule) + reserved(level, rule) + amount - figure or 0
      local never = figure and amount > figure
      if never or (excess > 0 and amount > 0) then
        if level.limits['shadow:' .. rule.name] then
          shadowed[#shadowed + 1] = rule.name
        else
          local free = not never and frees(level, rule, excess)
          local found = {status = status(level, rule, now), amount = amount, kind = never and 'exceeds' or rule.kind,
            retry = free and free - now or -1, weight = never and math.huge or free and free - now or 0}
          if not heaviest or found.weight > heaviest.weight then heaviest = found end
        end
      end
    end
  end
  return heaviest, shadowed
end
