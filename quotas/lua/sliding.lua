-- Stands before the budget's functions, after minute.lua: moves a level's minute to now, in its table only:
-- writing.lua writes it.

-- The clock has stepped back: what stood in the future counts as of now.
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
        level.older = level.older .. struct.pack(SLICE_FORMAT, unpack(slice))
      end
    end
  end
  figures[OLDEST] = oldest_of(level)
end

-- Takes from the sums what has left.
local function drop_left(level, horizon)
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
    drop_left(level, horizon)
  end
end
