-- Stands before reserve, after room.lua: how much a request gets at first, and why it does not fit (see sizing.py).
-- An ask is {requests, input, prompt (the longest), ceiling (the most per choice), choice (held per choice), choices,
-- output (held by all), stated (whether the caller asked for the ceiling)}.

-- What a request holds at first; quantum 0: all at once.
local function size(levels, ask, quantum)
  local metered, room = false, math.huge
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if rule.last == 'output' then
        metered, room = true, math.min(room, level.shadow[rule.name] and room or room_of(level, rule, ask.input))
      end
    end
  end
  if not ask.stated then ask.ceiling = math.max(1, math.min(ask.ceiling, ceiling_of(levels))) end
  ask.choice, ask.is_cut = ask.ceiling, quantum > 0 or not ask.stated
  if quantum > 0 and metered then ask.choice = math.min(ask.choice, portion(levels, quantum, ask.choices)) end
  if ask.is_cut then ask.choice = math.max(1, math.min(ask.choice, math.floor(room / ask.choices))) end
  if quantum == 0 then ask.ceiling = ask.choice end
  ask.output = ask.choice * ask.choices
end

-- What a rule counts of an ask: of what it holds at first, and of all that was asked for. A limit in shadow has not cut
-- it, and counts the least that it would have been cut to.
local function amounts_of(ask, rule, shadow)
  local amount = amount_of(ask, rule)
  local most = ask.stated and rule.last == 'output' and amount + (ask.ceiling - ask.choice) * ask.choices or amount
  if not shadow then return amount, most end
  if rule.last == 'output' and ask.is_cut then amount = amount - ask.output + ask.choices end
  if rule.last == 'ceiling' and not ask.stated then amount = 1 end
  return amount, ask.stated and most or amount
end

-- The heaviest refusal (what can never fit, else what takes longest), or nil; and the numbers of those in shadow.
local function refusal(levels, ask, now)
  local heaviest, shadowed = nil, ''
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      local figure, shadow = level.limits[rule.number], level.shadow[rule.name]
      local amount, most = amounts_of(ask, rule, shadow)
      local excess = used(level, rule) + reserved(level, rule) + amount - figure
      if level.paused and rule.is_paced and not shadow then excess = math.max(1, excess) end
      if most <= figure and (excess <= 0 or amount <= 0) then
        -- fits
      elseif shadow then
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
  return heaviest, shadowed
end
