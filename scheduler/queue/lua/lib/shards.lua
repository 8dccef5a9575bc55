-- Shared after `promises`: what a shard knows of the queue's other shards, if there are several. The rules are
-- `ShardCounters` in scheduler/queue/shards.py.
local RIVALS_FORMAT = '<dd' -- highest virtual time of the other shards, and until when jobs count as waiting there

-- The virtual time of the other shards in a lane, and whether jobs wait there.
local function rivals_of(lane)
  local packed = IS_SHARD and call('HGET', key('rivals'), lane)
  if not packed then return 0, false end
  local counter, until_ms = struct.unpack(RIVALS_FORMAT, packed)
  return counter, NOW < until_ms
end

-- Read what a worker knows of the other shards, from ARGV[at] on: for each lane virtual time, and 1 if jobs wait there.
local function receive_floors(at)
  for level, lane in ipairs(LANES) do
    local floor, waits = tonumber(ARGV[at + 2 * level - 2]), ARGV[at + 2 * level - 1] == '1'
    local packed, counter, until_ms = call('HGET', key('rivals'), lane.name), 0, 0
    if packed then counter, until_ms = struct.unpack(RIVALS_FORMAT, packed) end
    if waits or floor > counter then
      packed = struct.pack(RIVALS_FORMAT, math.max(counter, floor), waits and NOW + FRESH_MS or until_ms)
      call('HSET', key('rivals'), lane.name, packed)
    end
  end
end

-- Where a tenant starts that begins to wait in a lane in which none does.
local function idle_counter(lane)
  local rivals, contended = rivals_of(lane)
  if contended then return rivals end
  local highest = call('ZREVRANGE', key('counters', lane), 0, 0, 'WITHSCORES')[2]
  if IS_SHARD and not highest then highest = call('HGET', key('level'), lane) end
  return math.max(rivals, tonumber(highest or 0))
end

-- A lane in which no job waits is level: its tenants need no counters. If jobs wait in other shards, only those that are
-- behind them lose theirs, at most PER_CALL. Returns where a tenant starts that begins to wait.
local function level_out(lane)
  local counters, rivals, contended = key('counters', lane), rivals_of(lane)
  if not contended then
    local start = idle_counter(lane)
    call('HSET', key('level'), lane, start)
    call('UNLINK', counters)
    return start
  end
  local below = call('ZCOUNT', counters, '-inf', string.format('(%.17g', rivals))
  if below > 0 then
    call('ZREMRANGEBYRANK', counters, 0, math.min(below, PER_CALL) - 1)
    call('HSET', key('level'), lane, rivals)
  end
  return rivals
end

-- The head of each lane, for workers: virtual time, how long the oldest job has waited (-1: none waits), and 1 if a
-- guaranteed one waits.
local function describe_heads()
  local heads = {}
  for _, lane in ipairs(LANES) do
    local oldest = call('ZRANGE', key('waiting', lane.name), 0, 0, 'WITHSCORES')[2]
    local counter = call('ZRANGE', key('backlog', lane.name), 0, 0, 'WITHSCORES')[2]
    heads[#heads + 1] = counter or string.format('%.17g', idle_counter(lane.name))
    heads[#heads + 1] = oldest and math.max(0, NOW - tonumber(oldest)) or -1
    heads[#heads + 1] = call('EXISTS', key('guaranteed', lane.name))
  end
  return heads
end
