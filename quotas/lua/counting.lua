-- Stands before the budget's functions, after sliding.lua: counts in a level's minute, which has been moved to now.

local function minute_add(level, requests, input, output)
  local figures, current = level.figures, level.current
  if figures[AT] ~= current then
    if figures[AT] > 0 then
      level.older = level.older .. struct.pack(SLICE_FORMAT, unpack(figures, AT, SLICE + 3))
    else
      figures[OLDEST] = current
    end
    figures[AT] = current
    clear(figures, SLICE)
  end
  add_to(figures, SLICE, requests, input, output)
  add_to(figures, MINUTE, requests, input, output)
end

-- Takes back the request counted in slice `at`, unless that has left or was never counted there.
local function minute_uncount(level, at)
  local figures = level.figures
  at = math.min(at, level.current)
  if at == figures[AT] then
    if figures[SLICE + 1] < 1 then return end
    figures[SLICE + 1] = figures[SLICE + 1] - 1
  elseif figures[FIRST] > 0 and at >= figures[FIRST] and at <= figures[LAST] then
    local field = string.format('%d', at)
    local packed = redis.call('HGET', minute_key(level), field)
    local requests = packed and select(2, struct.unpack(SLICE_FORMAT, packed)) or 0
    if requests < 1 then return end
    redis.call('HSET', minute_key(level), field, struct.pack('<dd', at, requests - 1) .. string.sub(packed, 17))
  else
    local from = 1
    while from < #level.older and struct.unpack('<d', level.older, from) ~= at do from = from + SLICE_BYTES end
    local requests = from < #level.older and struct.unpack('<d', level.older, from + 8) or 0
    if requests < 1 then return end
    level.older = string.sub(level.older, 1, from + 7) .. struct.pack('<d', requests - 1) ..
      string.sub(level.older, from + 16)
  end
  figures[MINUTE + 1] = figures[MINUTE + 1] - 1
end
