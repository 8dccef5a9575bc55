-- Precedes the budget's functions: day and month in a tenant's zone, from the store's clock alone.
-- A zone is stored as {start ms, offset ms, start, offset, …}, ascending (windows.zone_table).
local DAY_MS = 86400000

local function offset_at(zone, at)
  local i = 1
  while zone[i + 2] and zone[i + 2] <= at do i = i + 2 end
  return zone[i + 1] or 0
end

local function day_at(zone, at) return math.floor((at + offset_at(zone, at)) / DAY_MS) end

-- Returns when a local day begins. Offsets before and after are tried, since a change may repeat or skip midnight.
local function day_begins(zone, day, near)
  local guess = day * DAY_MS - offset_at(zone, near)
  local before, after = day * DAY_MS - offset_at(zone, guess - 1), day * DAY_MS - offset_at(zone, guess)
  local first, second = math.min(before, after), math.max(before, after)
  return day_at(zone, first) == day and first or second
end

-- Returns year, month and day of a day number since 1970 (H. Hinnant, "chrono-compatible low-level date algorithms").
local function civil(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year = math.floor(
    (of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524) - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local march = math.floor((5 * of_year + 2) / 153)
  local month = march < 10 and march + 3 or march - 9
  return year + era * 400 + (month <= 2 and 1 or 0), month, of_year - math.floor((153 * march + 2) / 5) + 1
end

-- Returns {number = 20261121, begins = ms, ends = ms, month_ends = ms} for a zone's current day.
local function calendar_at(zone, now)
  local today = day_at(zone, now)
  local year, month, day = civil(today)
  local later = today - day + 32 -- in the next month, whatever the length of this one
  local next_month = later - select(3, civil(later)) + 1
  return {
    number = year * 10000 + month * 100 + day,
    begins = day_begins(zone, today, now),
    ends = day_begins(zone, today + 1, now),
    month_ends = day_begins(zone, next_month, now),
  }
end

-- Cached, since calls mostly ask for the same day.
local named, name_of_month, name_of_day = 0, '', ''

local function names_of(number)
  if named ~= number then
    local month = math.floor(number / 100)
    name_of_month = string.format('%04d-%02d', math.floor(month / 100), month % 100)
    named, name_of_day = number, string.format('%02d', number % 100)
  end
  return name_of_month, name_of_day
end
