-- Stands before extend, after room.lua and pauses.lua: what a running request gets beside what it has (see sizing.py).
local BLOCKED_MS = math.floor(MINUTE_MS / 120)

-- What a running request gets of `wanted` tokens, in multiples of `unit`: {tokens, limited_by (name or ''), spent, retry
-- (ms), is_full (some minute)}. A level whose minute is in the way `binds`.
local function more(levels, wanted, unit, own, place, now)
  local got, full, spent, retry, is_full = wanted, '', '', 0, false
  each_output(levels, function(level, rule, figure)
    local room = room_of(level, rule, figure, 0)
    local behind = is_paced(rule) and level.paused and (not place or is_before(level.paused, place))
    got = math.min(got, behind and 0 or math.max(0, room))
    if room >= unit and not behind then return end
    if full == '' then full = rule.name end
    if rule.window == 'minute' then
      level.binds, is_full = true, true
      retry = math.max(retry, behind and BLOCKED_MS or minute_frees(level.minute, unit - room, rule.counts) - now)
    elseif room + reserved(level, rule) - own < unit then
      if spent == '' then spent = rule.name end
    else
      retry = math.max(retry, BLOCKED_MS)
    end
  end)
  return {tokens = got - got % unit, limited_by = spent ~= '' and spent or full, spent = spent ~= '', retry = retry,
    is_full = is_full}
end
