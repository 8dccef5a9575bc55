-- Stands before reserve, after room.lua: how much a request gets at first, and why it does not fit (see sizing.py).
-- An ask is {requests, input, prompt (the longest), ceiling (the most per choice), choice (held per choice), choices,
-- output (held by all), stated (whether the caller asked for the ceiling)}.

-- What a request holds at first; quantum 0: all at once.
local function size(levels, ask, quantum)
  local metered = false
  each_metering(levels, function(_, _, figure, last)
    if last == 'ceiling' and not ask.stated then ask.ceiling = math.min(ask.ceiling, figure) end
    if last == 'output' then metered = true end
  end)
  ask.ceiling = math.max(1, ask.ceiling)
  ask.choice = ask.ceiling
  if quantum > 0 and metered then ask.choice = math.min(ask.choice, portion(levels, quantum, ask.choices)) end
  if quantum > 0 or not ask.stated then
    each_output(levels, function(level, rule, figure)
      ask.choice = math.min(ask.choice, math.floor(room_of(level, rule, figure, ask.input) / ask.choices))
    end)
    ask.choice = math.max(1, ask.choice)
  end
  if quantum == 0 then ask.ceiling = ask.choice end
  ask.output = ask.choice * ask.choices
end

-- The heaviest refusal (what can never fit, else what takes longest), or nil; and the names refused in shadow.
local function refusal(levels, ask, now)
  local heaviest, shadowed = nil, {}
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      local figure, amount, in_shadow = level.limits[rule.name], sum(ask, rule.counts), level.shadow[rule.name]
      local excess = used(level, rule) + reserved(level, rule) + amount - figure
      if level.paused and is_paced(rule) and not in_shadow then excess = math.max(1, excess) end
      local later = ask.stated and rule.counts[#rule.counts] == 'output' and (ask.ceiling - ask.choice) * ask.choices or 0
      local never = amount + later > figure
      if never or (excess > 0 and amount > 0) then
        if in_shadow then
          shadowed[#shadowed + 1] = rule.name
        else
          local free = not never and frees(level, rule, excess)
          local found = {status = status(level, rule, now), amount = never and amount + later or amount, kind = never and 'exceeds' or rule.kind,
            retry = free and free - now or -1, weight = never and math.huge or free and free - now or 0}
          if not heaviest or found.weight > heaviest.weight then heaviest = found end
        end
      end
    end
  end
  return heaviest, shadowed
end
