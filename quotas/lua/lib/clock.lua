-- Precedes every script: the store's clock, the only one that budgets use.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
