-- Stands before reserve, after room.lua: how much a request gets at first (see sizing.py).
-- An ask is {requests, input, prompt (the longest), ceiling (the most per choice), start (what the longest choice begins
-- with), choice (held per choice on top), choices (that go on), owed (held beside that), output (held by all), stated
-- (whether the caller asked for the ceiling)}.

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
  ask.choice, ask.is_cut = math.max(0, ask.ceiling - ask.start), quantum > 0 or not ask.stated
  if ask.choices == 0 then ask.choice = 0 end
  if ask.choice > 0 and ask.is_cut then
    if quantum > 0 and metered then ask.choice = math.min(ask.choice, portion(levels, quantum, ask.choices)) end
    ask.choice = math.max(1, math.min(ask.choice, math.floor((room - ask.owed) / ask.choices)))
  end
  if quantum == 0 then ask.ceiling = ask.start + ask.choice end
  ask.output = ask.choice * ask.choices + ask.owed
end
