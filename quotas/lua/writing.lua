-- Stands before the budget's functions, after counting.lua: what they write of levels.
local SPENT_MS = 70 * DAY_MS -- a month's sums outlive it in every zone
local MOST_BESIDE = 8 * SLICE_BYTES -- of older slices beside the figures; beyond them they go into the hash

-- What a level keeps beside its figures, for the few calls where that changes.
local function write_beside(prefix, level)
  local figures = level.figures
  if level.is_rebuilt then
    redis.call('DEL', minute_key(level))
  elseif level.left then
    redis.call('HDEL', minute_key(level), unpack(level.left))
  end
  if #level.older > MOST_BESIDE then
    local fields, first, last = {}, nil, nil
    for from = 1, #level.older, SLICE_BYTES do
      last = struct.unpack('<d', level.older, from)
      first = first or last
      fields[#fields + 1] = string.format('%d', last)
      fields[#fields + 1] = string.sub(level.older, from, from + SLICE_BYTES - 1)
    end
    redis.call('HSET', minute_key(level), unpack(fields))
    redis.call('PEXPIRE', minute_key(level), 2 * MINUTE_MS)
    if figures[FIRST] == 0 then figures[FIRST] = first end
    figures[LAST], level.older = last, ''
  end
  if level.closing then
    local month, day = names_of(level.closing[1])
    local spent = prefix .. 'spent:' .. level.id .. ':' .. month
    redis.call('HSET', spent, day, level.closing[2], 'month', level.closing[3])
    redis.call('PEXPIRE', spent, SPENT_MS)
  end
end

-- Writes levels and, where given, a flight's record. Without a flight in the air nothing can be held: what a lost
-- write left behind ends here. Figures of a level that is no more do not stay for ever.
local function write_levels(prefix, levels, flight_key, record)
  local values, size = {flight_key, record, false, false, false, false}, 2
  for _, level in ipairs(levels) do
    if level.figures[HELD + 1] < 1 then clear(level.figures, HELD) end
    if level.is_rebuilt or level.left or level.closing or #level.older > MOST_BESIDE then write_beside(prefix, level) end
    level.packed = struct.pack(FIGURES, unpack(level.figures, 1, PAUSED)) .. level.older
    values[size + 1], values[size + 2] = level.key, level.packed
    size = size + 2
  end
  redis.call('MSET', unpack(values, 1, size))
  for _, level in ipairs(levels) do
    if not level.is_known or level.state == DELETED then redis.call('PEXPIRE', level.key, SPENT_MS) end
  end
end
