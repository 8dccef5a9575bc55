-- Stands before reserve, after room.lua: how much a request gets at first, and why it does not fit (see sizing.py).
-- An ask is {requests, input, prompt (the longest), ceiling (the most per choice), choice (held per choice), choices,
-- output (held by all), stated (whether the caller asked for the ceiling)}.

-- What a request holds at first; quantum 0: all at once.
local function size(levels, ask, quantum)
  local metered, room = false, math.huge
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if level.shadow[rule.name] then
        -- refuses nobody
      elseif rule.last == 'output' then
        metered, room = true, math.min(room, room_of(level, rule, ask.input))
      elseif rule.last == 'ceiling' and not ask.stated then
        ask.ceiling = math.min(ask.ceiling, level.limits[rule.number])
      end
    end
  end
  ask.ceiling = math.max(1, ask.ceiling)
  ask.choice = ask.ceiling
  if quantum > 0 and metered then ask.choice = math.min(ask.choice, portion(levels, quantum, ask.choices)) end
  if quantum > 0 or not ask.stated then
    ask.choice = math.max(1, math.min(ask.choice, math.floor(room / ask.choices)))
  end
  if quantum == 0 then ask.ceiling = ask.choice end
  ask.output = ask.choice * ask.choices
end

-- The heaviest refusal (what can never fit, else what takes longest), or nil; and the numbers of those in shadow.
local function refusal(levels, ask, now)
  local heaviest, shadowed = nil, ''
  local later = ask.stated and (ask.ceiling - ask.choice) * ask.choices or 0
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      local figure, amount, shadow = level.limits[rule.number], amount_of(ask, rule), level.shadow[rule.name]
      local excess = used(level, rule) + reserved(level, rule) + amount - figure
      if level.paused and rule.is_paced and not shadow then excess = math.max(1, excess) end
      local most = rule.last == 'output' and amount + later or amount
      if most > figure or (excess > 0 and amount > 0) then
        if shadow then
          shadowed = shadowed .. rule.number .. ','
        else
          local never = most > figure
          local free = not never and frees(level, rule, excess)
          local weight = never and math.huge or free and free - now or 0
          if not heaviest or weight > heaviest.weight then
            heaviest = {level = level, rule = rule, amount = never and most or amount, never = never,
              retry = free and free - now or -1, weight = weight}
          end
        end
      end
    end
  end
  return heaviest, shadowed
end
