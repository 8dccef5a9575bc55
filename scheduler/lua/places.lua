-- Prelude: seats in the lanes, counters and shares (scheduler/lane_places.py states the rules). After `base`.
local HEAD_MS = 2 ^ 50
local owed = {}

-- Put a job in its lane as queued since `job.queued`; a tenant that becomes backlogged is lifted.
local function seat(job)
  local lane, backlog, counters = job.lane, key('backlog', job.lane), key('counters', job.lane)
  if not call('ZSCORE', backlog, job.tenant) then
    local lowest = call('ZRANGE', backlog, 0, 0, 'WITHSCORES')[2] or call('ZREVRANGE', counters, 0, 0, 'WITHSCORES')[2]
    local counter = math.max(tonumber(lowest or 0), tonumber(call('ZSCORE', counters, job.tenant) or 0))
    call('ZADD', counters, counter, job.tenant)
    call('ZADD', backlog, counter, job.tenant)
  end
  local ahead = job.returned == 1 and HEAD_MS or 0
  call('ZADD', key('queue', lane, job.tenant), job.due - ahead, job.flight)
  call('ZADD', key('waiting', lane), job.queued, job.flight)
  if job.returned == 1 then call('ZADD', key('returned', lane), job.due, job.flight) end
  local hard = job.generated > 0 and job.hard_end or math.min(job.hard_end, job.hard_first)
  call('ZADD', key('expiry'), math.min(job.queued + LANE[lane].max_wait_ms, hard), job.flight)
end

-- Free a job's seat.
local function unseat(job)
  local queue = key('queue', job.lane, job.tenant)
  call('ZREM', queue, job.flight)
  if call('EXISTS', queue) == 0 then call('ZREM', key('backlog', job.lane), job.tenant) end
  call('ZREM', key('waiting', job.lane), job.flight)
  call('ZREM', key('returned', job.lane), job.flight)
  call('ZREM', key('expiry'), job.flight)
end

-- Weighted tokens by which a lane is behind its share floor; kept here until flush_shares.
local function owed_to(lane)
  if not owed[lane] then owed[lane] = tonumber(call('HGET', key('owed'), lane) or 0) end
  return owed[lane]
end

-- Count service (negative: a refund) for the job's tenant and lane, and what it makes the lanes with a floor owed.
local function charge(job, tokens)
  if tokens == 0 then return end
  job.counter = tonumber(call('ZINCRBY', key('counters', job.lane), tokens / job.weight, job.tenant))
  call('ZADD', key('backlog', job.lane), 'XX', job.counter, job.tenant)
  for _, lane in ipairs(LANES) do
    if lane.share_floor > 0 then
      local due = call('EXISTS', key('waiting', lane.name)) == 1 and lane.share_floor * tokens or 0
      local own = lane.name == job.lane and tokens or 0
      owed[lane.name] = math.max(-OWED_LIMIT, math.min(OWED_LIMIT, owed_to(lane.name) + due - own))
    end
  end
end

-- To call once at the end of every script that charges.
local function flush_shares()
  for lane, tokens in pairs(owed) do call('HSET', key('owed'), lane, tokens) end
end
