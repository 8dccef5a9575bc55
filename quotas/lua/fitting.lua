-- Stands before reserve, after sizing.lua: why a request does not fit (see sizing.py).

-- What a rule counts of an ask: of what it holds at first, and of all that was asked for. A limit in shadow has not cut
-- it, and counts the least that it would have been cut to.
local function amounts_of(ask, rule, shadow)
  local amount = amount_of(ask, rule)
  local later = math.max(0, ask.ceiling - ask.start - ask.choice) * ask.choices
  local most = ask.stated and rule.last == 'output' and amount + later or amount
  if not shadow then return amount, most end
  if rule.last == 'output' and ask.is_cut then amount = amount - (ask.choice - math.min(1, ask.choice)) * ask.choices end
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
