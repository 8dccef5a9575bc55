-- Stands before reserve, extend and settle, after minute.lua: the one place that writes a sliding minute.

local function count(slice, requests, input, output)
  slice.requests, slice.input, slice.output = slice.requests + requests, slice.input + input, slice.output + output
end

-- Appends a slice to what HSET is given.
local function put(fields, slice)
  fields[#fields + 1] = string.format('%d', slice.at)
  fields[#fields + 1] = string.format('%d,%d,%d', slice.requests, slice.input, slice.output)
end

-- Drops what has left, and dates now what stood in the future.
local function tidy(minute, fields)
  local gone = {}
  for _, slice in ipairs(minute.left) do gone[#gone + 1] = string.format('%d', slice.at) end
  for _, slice in ipairs(minute.early) do
    gone[#gone + 1] = string.format('%d', slice.at)
    count(minute.slice, slice.requests, slice.input, slice.output)
  end
  if #gone > 0 then redis.call('HDEL', minute.key, unpack(gone)) end
  if #minute.early > 0 then
    put(fields, minute.slice)
    minute.last = minute.current
  end
  minute.left, minute.early = {}, {}
end

-- Adds usage to slice `at` (never a future one), unless that would take from it what it does not hold: the request has
-- left, or was never counted here.
local function minute_add(minute, at, requests, input, output)
  local fields = {}
  tidy(minute, fields)
  local slice = minute.slice
  if at < minute.current then
    slice = unpack_slice(redis.call('HGET', minute.key, string.format('%d', at)), at)
  end
  if slice.requests + requests >= 0 then
    count(slice, requests, input, output)
    count(minute, requests, input, output)
    put(fields, slice)
    minute.last = math.max(minute.last, slice.at)
  end
  minute.ends = (minute.last + SLICES + 1) * SLICE_MS
  redis.call('HSET', minute.key, 'first', minute.first, 'last', minute.last, 'requests', minute.requests,
    'input', minute.input, 'output', minute.output, unpack(fields))
  if not minute.is_dated then redis.call('PEXPIRE', minute.key, 2 * MINUTE_MS) end
end
