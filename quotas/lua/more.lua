-- Stands before extend, after room.lua and pauses.lua: what a running request gets beside what it has (see sizing.py).
local BLOCKED_MS = (MINUTE_MS - MINUTE_MS % 120) / 120

-- Tokens that those who come first take at least: one each.
local function before(level, place)
  if not place then return redis.call('ZCARD', paused_key(level)) end
  return redis.call('ZCOUNT', paused_key(level), '-inf', string.format('(%.0f', place[1]))
end

-- Notes in `found` what one rule leaves.
local function look(found, level, rule, wanted, own, place, now)
  local unit, room = wanted.unit, room_of(level, rule, 0)
  local behind = rule.is_paced and level.paused and (not place or is_before(level.paused, place))
  found.tokens = math.min(found.tokens, behind and 0 or math.max(0, room))
  if room >= unit and not behind then return end
  found.full = found.full or rule.name
  if rule.window == 'minute' then
    level.binds, found.is_full = true, true
    local missing = unit - room + (behind and before(level, place) or 0)
    found.retry = math.max(found.retry, missing > 0 and minute_frees(level, missing, rule) - now or BLOCKED_MS)
  elseif room + reserved(level, rule) - own < unit then
    found.spent = found.spent or rule.name
  else
    found.retry = math.max(found.retry, BLOCKED_MS)
  end
end

-- What a running request gets of `wanted` {tokens, unit}, in multiples of the unit: {tokens, limited_by (name or ''),
-- is_spent, retry (ms), is_full (some minute)}. A level whose minute is in the way `binds`.
local function more(levels, wanted, own, place, now)
  local found = {tokens = wanted.tokens, retry = 0, is_full = false}
  for _, level in ipairs(levels) do
    for _, rule in ipairs(level.rules) do
      if rule.last == 'output' and not level.shadow[rule.name] then look(found, level, rule, wanted, own, place, now) end
    end
  end
  found.tokens = found.tokens - found.tokens % wanted.unit
  found.limited_by, found.is_spent = found.spent or found.full or '', found.spent ~= nil
  return found
end
