-- Stands before the budget's functions, after figures.lua: any sixty seconds, in slices of 250 ms (see windows.py). The
-- newest slice stands among a level's figures, those before it after them (`older`), and where these are many, most in
-- a hash of their own: their number → the slice packed. At most 241 are held, so every call is bounded. Before it
-- stand SLICE_MS, SLICES and MINUTE_MS: a slice's length, how many make the minute, and its length.

local function minute_key(level) return level.prefix .. 'minute:' .. level.id end

local function slices_in_hash(level, from, to)
  local names, found = {}, {}
  for at = from, to do names[#names + 1] = string.format('%d', at) end
  for _, packed in ipairs(redis.call('HMGET', minute_key(level), unpack(names))) do
    if packed then found[#found + 1] = {struct.unpack(SLICE_FORMAT, packed)} end
  end
  return found, names
end

-- All that count, oldest first: {number, requests, input, output}.
local function slices_of(level)
  local figures = level.figures
  local found = figures[FIRST] > 0 and slices_in_hash(level, figures[FIRST], figures[LAST]) or {}
  for from = 1, #level.older, SLICE_BYTES do found[#found + 1] = {struct.unpack(SLICE_FORMAT, level.older, from)} end
  if figures[AT] > 0 then found[#found + 1] = {figures[AT], unpack(figures, SLICE + 1, SLICE + 3)} end
  return found
end

local function add_to(figures, base, requests, input, output)
  figures[base + 1] = figures[base + 1] + requests
  figures[base + 2] = figures[base + 2] + input
  figures[base + 3] = figures[base + 3] + output
end

local function clear(figures, base) figures[base + 1], figures[base + 2], figures[base + 3] = 0, 0, 0 end

local function oldest_of(level)
  local figures = level.figures
  if figures[FIRST] > 0 then return figures[FIRST] end
  return #level.older > 0 and struct.unpack('<d', level.older) or figures[AT]
end

-- When `amount` of what a rule counts has left; a whole minute where reserved tokens stand in the way.
local function minute_frees(level, amount, rule)
  for _, slice in ipairs(slices_of(level)) do
    for _, field in ipairs(rule.counts) do amount = amount - slice[STAND.minute[field] - MINUTE + 1] end
    if amount <= 0 then return (slice[1] + SLICES + 1) * SLICE_MS end
  end
  return level.now + MINUTE_MS
end
