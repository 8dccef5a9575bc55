-- Stands before reserve and extend, after levels.lua: flights that wait for a level's minute to have room, oldest first.
-- One that nobody has asked for lately is nobody's any more: its gateway died, and a reaper will settle it.
local FORGOTTEN_MS, MOST_FORGOTTEN = 5000, 16

local function is_before(one, other) return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2]) end

local function paused_key(level) return level.prefix .. 'paused:' .. level.id end

local function oldest_paused(prefix, level, now)
  local paused = paused_key(level)
  for _ = 1, MOST_FORGOTTEN do
    local head = redis.call('ZRANGE', paused, 0, 0, 'WITHSCORES')
    if not head[1] then
      level.figures[PAUSED] = 0
      return nil
    end
    local record = redis.call('GET', prefix .. 'flight:' .. head[1])
    local asked = record and record ~= SETTLED and unpack_flight(record)[F_ASKED]
    if asked and now - asked <= FORGOTTEN_MS then return {tonumber(head[2]), head[1]} end
    redis.call('ZREM', paused, head[1])
  end
end

-- Notes for each level who has waited longest there.
local function find_paused(prefix, levels, now)
  for _, level in ipairs(levels) do
    if level.figures[PAUSED] > 0 and level.is_paced then
      level.paused = oldest_paused(prefix, level, now)
    end
  end
end
