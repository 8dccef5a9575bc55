-- Stands before reserve and settle, after minute.lua: the one place that writes a sliding minute.

local function bump(minute, at, requests, input, output)
  local name = string.format('%d', at)
  local slice = unpack_slice(redis.call('HGET', minute.key, name), at)
  if slice.requests + requests < 0 then return end -- the request has left, or was never counted here
  redis.call('HSET', minute.key, name,
    string.format('%.0f,%.0f,%.0f', slice.requests + requests, slice.input + input, slice.output + output))
  minute.requests, minute.input, minute.output = minute.requests + requests, minute.input + input, minute.output + output
  minute.last = math.max(minute.last, at)
end

-- Drops what has left, dates now what stood in the future, then adds usage to slice `at` (never a future one).
local function minute_add(minute, at, requests, input, output)
  local gone = {}
  for _, slice in ipairs(minute.left) do gone[#gone + 1] = string.format('%d', slice.at) end
  for _, slice in ipairs(minute.early) do gone[#gone + 1] = string.format('%d', slice.at) end
  if #gone > 0 then redis.call('HDEL', minute.key, unpack(gone)) end
  for _, slice in ipairs(minute.early) do
    minute.requests = minute.requests - slice.requests
    minute.input = minute.input - slice.input
    minute.output = minute.output - slice.output
    bump(minute, minute.current, slice.requests, slice.input, slice.output)
  end
  minute.left, minute.early = {}, {}
  bump(minute, math.min(at, minute.current), requests, input, output)
  minute.ends = (minute.last + SLICES + 1) * SLICE_MS
  redis.call('HSET', minute.key, 'first', minute.first, 'last', minute.last, 'requests', minute.requests,
    'input', minute.input, 'output', minute.output)
  redis.call('PEXPIRE', minute.key, 2 * MINUTE_MS)
end
