-- Precedes the budget's functions, after records.lua: the sliding minute in slices of 250 ms (windows.py). The newest slice is
-- among a level's figures, older ones follow them (`older`), and if these are many, most move to a hash: number → packed slice.
-- At most 241 are stored, so every call is bounded. SLICE_MS, SLICES and MINUTE_MS are defined before: a slice's length, the
-- number of slices in a minute, and the minute's length.

local function minute_key(level) return level.prefix .. 'minute:' .. level.id end

local function slices_in_hash(level, from, to)
  local names, found = {}, {}
  for at = from, to do names[#names + 1] = string.format('%d', at) end
  for _, packed in ipairs(redis.call('HMGET', minute_key(level), unpack(names))) do -- at most SLICES
    if packed then found[#found + 1] = {struct.unpack(SLICE_FORMAT, packed)} end
  end
  return found, names
end

-- Returns all current slices {number, requests, input, output}, oldest first.
local function slices_of(level)
  local figures = level.figures
  local found = figures[FIRST] > 0 and slices_in_hash(level, figures[FIRST], figures[LAST]) or {}
  for from = 1, #level.older, SLICE_BYTES do found[#found + 1] = {struct.unpack(SLICE_FORMAT, level.older, from)} end
  if figures[AT] > 0 then found[#found + 1] = {figures[AT], unpack(figures, SLICE + 1, SLICE + 3)} end -- at most three figures
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

-- Returns when `amount` of a rule's usage has expired; a whole minute if reserved tokens are in the way.
local function minute_frees(level, amount, rule)
  for _, slice in ipairs(slices_of(level)) do
    for _, field in ipairs(rule.counts) do amount = amount - slice[USED_AT.minute[field] - MINUTE + 1] end
    if amount <= 0 then return (slice[1] + SLICES + 1) * SLICE_MS end
  end
  return level.now + MINUTE_MS
end

-- Rebuilds the minute after the clock has stepped back: slices in the future are dated now.
local function turn_back(level, horizon)
  local figures, slices = level.figures, slices_of(level)
  clear(figures, SLICE)
  clear(figures, MINUTE)
  figures[AT], figures[FIRST], figures[LAST], level.older, level.is_rebuilt = level.current, 0, 0, '', true
  for _, slice in ipairs(slices) do
    if slice[1] >= horizon then
      add_to(figures, MINUTE, slice[2], slice[3], slice[4])
      if slice[1] >= level.current then
        add_to(figures, SLICE, slice[2], slice[3], slice[4])
      else
        level.older = level.older .. struct.pack(SLICE_FORMAT, unpack(slice)) -- at most four figures
      end
    end
  end
  figures[OLDEST] = oldest_of(level)
end

-- Subtracts expired slices from the sums.
local function drop_expired(level, horizon)
  local figures, from = level.figures, 1
  if figures[FIRST] > 0 then
    local to = math.min(figures[LAST], horizon - 1)
    local left, names = slices_in_hash(level, figures[FIRST], to)
    for _, slice in ipairs(left) do add_to(figures, MINUTE, -slice[2], -slice[3], -slice[4]) end
    level.left, figures[FIRST] = names, to + 1
    if to == figures[LAST] then figures[FIRST], figures[LAST] = 0, 0 end
  end
  while figures[FIRST] == 0 and from < #level.older do
    local at, requests, input, output = struct.unpack(SLICE_FORMAT, level.older, from)
    if at >= horizon then break end
    add_to(figures, MINUTE, -requests, -input, -output)
    from = from + SLICE_BYTES
  end
  if from > 1 then level.older = string.sub(level.older, from) end
  figures[OLDEST] = oldest_of(level)
end

-- Moves a level's minute to now, in its table only.
local function slide(level, now)
  local figures, current = level.figures, math.floor(now / SLICE_MS)
  local horizon = current - SLICES
  level.now, level.current = now, current
  if figures[AT] > current then
    turn_back(level, horizon)
  elseif figures[AT] < horizon then
    clear(figures, SLICE)
    clear(figures, MINUTE)
    level.is_rebuilt, level.older = figures[FIRST] > 0, ''
    figures[AT], figures[OLDEST], figures[FIRST], figures[LAST] = 0, 0, 0, 0
  elseif figures[OLDEST] < horizon then
    drop_expired(level, horizon)
  end
end

-- Counts usage in a level's minute, after `slide`.
local function minute_add(level, requests, input, output)
  local figures, current = level.figures, level.current
  if figures[AT] ~= current then
    if figures[AT] > 0 then
      level.older = level.older .. struct.pack(SLICE_FORMAT, unpack(figures, AT, SLICE + 3)) -- at most four figures
    else
      figures[OLDEST] = current
    end
    figures[AT] = current
    clear(figures, SLICE)
  end
  add_to(figures, SLICE, requests, input, output)
  add_to(figures, MINUTE, requests, input, output)
end

-- Takes back `count` requests that were counted in slice `at`, or as many as it still has; none if the slice has expired.
local function minute_uncount(level, at, count)
  local figures = level.figures
  at = math.min(at, level.current)
  if at == figures[AT] then
    count = math.min(count, figures[SLICE + 1])
    figures[SLICE + 1] = figures[SLICE + 1] - count
  elseif figures[FIRST] > 0 and at >= figures[FIRST] and at <= figures[LAST] then
    local field = string.format('%d', at)
    local packed = redis.call('HGET', minute_key(level), field)
    local requests = packed and select(2, struct.unpack(SLICE_FORMAT, packed)) or 0
    count = math.min(count, requests)
    if count < 1 then return end
    redis.call('HSET', minute_key(level), field, struct.pack('<dd', at, requests - count) .. string.sub(packed, 17))
  else
    local from = 1
    while from < #level.older and struct.unpack('<d', level.older, from) ~= at do from = from + SLICE_BYTES end
    local requests = from < #level.older and struct.unpack('<d', level.older, from + 8) or 0
    count = math.min(count, requests)
    if count < 1 then return end
    level.older = string.sub(level.older, 1, from + 7) .. struct.pack('<d', requests - count) ..
      string.sub(level.older, from + 16)
  end
  figures[MINUTE + 1] = figures[MINUTE + 1] - count
end
