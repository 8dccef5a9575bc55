-- Stands before reserve, extend, settle and statuses: any sixty seconds, in slices of 250 ms (see windows.py).
-- Hash fields: first, last (oldest and newest slice held), requests, input, output (totals of all slices held),
-- and per slice number 'requests,input,output'. At most 241 slices are held, so every call is bounded. Before it stand
-- SLICE_MS, SLICES and MINUTE_MS: a slice's length, how many make the minute, and its length.

local function unpack_slice(packed, at)
  if not packed then return {at = at, requests = 0, input = 0, output = 0} end
  local requests, input, output = string.match(packed, '(%d+),(%d+),(%d+)')
  return {at = at, requests = tonumber(requests), input = tonumber(input), output = tonumber(output)}
end

local function read_slices(key, from, to)
  local names, found = {}, {}
  for at = from, to do names[#names + 1] = string.format('%d', at) end
  if #names == 0 then return found end
  for i, packed in ipairs(redis.call('HMGET', key, unpack(names))) do
    if packed then found[#found + 1] = unpack_slice(packed, from + i - 1) end
  end
  return found
end

-- What counts now. Writes nothing: slices that have left, or that a clock stepping back has put into the future,
-- are only remembered as `left` and `early` for the next write.
local function open_minute(key, now)
  local current = math.floor(now / SLICE_MS)
  local head = redis.call('HMGET', key, 'first', 'last', 'requests', 'input', 'output', string.format('%d', current))
  local first, last = tonumber(head[1]) or current, tonumber(head[2]) or current
  local minute = {key = key, now = now, current = current, requests = tonumber(head[3]) or 0,
    input = tonumber(head[4]) or 0, output = tonumber(head[5]) or 0, slice = unpack_slice(head[6], current),
    is_dated = head[6]} -- who first wrote in this slice has put off the key's end
  minute.left = read_slices(key, first, math.min(last, current - SLICES - 1))
  minute.early = read_slices(key, math.max(first, current + 1), last)
  for _, slice in ipairs(minute.left) do
    minute.requests = minute.requests - slice.requests
    minute.input = minute.input - slice.input
    minute.output = minute.output - slice.output
  end
  minute.last = math.min(last, current)
  minute.first = last < current - SLICES and current or math.min(math.max(first, current - SLICES), current)
  minute.ends = (minute.last + SLICES + 1) * SLICE_MS
  return minute
end

-- When `amount` of what these fields count has left; a whole minute where reserved tokens stand in the way.
local function minute_frees(minute, amount, fields)
  local held = read_slices(minute.key, minute.first, minute.last)
  for _, slice in ipairs(minute.early) do
    held[#held + 1] = {at = minute.current, requests = slice.requests, input = slice.input, output = slice.output}
  end
  for _, slice in ipairs(held) do
    for _, field in ipairs(fields) do amount = amount - (slice[field] or 0) end
    if amount <= 0 then return (slice.at + SLICES + 1) * SLICE_MS end
  end
  return minute.now + MINUTE_MS
end
