-- Stands before the budget's functions, after places.lua, writing.lua and flight.lua: a flight's levels, and its charge.

local function levels_of(prefix, flight, now)
  local levels = open_levels(prefix, places_of(flight[F_TENANT], flight[F_KEY]), now, {})
  return flight[F_OTHERS] == '' and levels or open_levels(prefix, cjson.decode(flight[F_OTHERS]), now, levels)
end

-- Adds to what a level's flights hold.
local function hold(level, requests, input, output) add_to(level.figures, HELD, requests, input, output) end

local function charge(level, input, output)
  local figures = level.figures
  minute_add(level, 0, input, output)
  figures[DAY_SUM], figures[MONTH_SUM] = figures[DAY_SUM] + input + output, figures[MONTH_SUM] + input + output
end
