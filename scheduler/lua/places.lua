-- Prelude: seats in the lanes (scheduler/lane_places.py states the rules). After `base` and `shares`.
local HEAD_FIELDS = {'lane', 'due', 'queued', 'hard_first', 'hard_end', 'prompt', 'n', 'guaranteed', 'whole',
  'generated'}
local HEAD_FORMAT = '<dddI4I2BI4' -- when it expires, queued, due, prompt, n, guaranteed, whole; its flight follows
local RESUMES = 2 -- added to `guaranteed` where the job has tokens already: its record says what else orders it

-- When a waiting job's time is over: at its hard deadline; where none was stated, after the lane's maximum wait.
local function expires(job)
  local hard = job.generated > 0 and job.hard_end or math.min(job.hard_end, job.hard_first)
  return hard < NEVER_MS and hard or job.queued + LANE[job.lane].max_wait_ms
end

-- A tenant's first job that never ran: returned ones have negative scores.
local function head_of(lane, tenant)
  return call('ZRANGEBYSCORE', key('queue', lane, tenant), 0, '+inf', 'LIMIT', 0, 1)[1]
end

-- Keep of a tenant's head what orders it: one read for many.
local function file_head(lane, tenant, job)
  if not job then return call('HDEL', key('heads', lane), tenant) end
  local guaranteed = job.guaranteed + (job.generated > 0 and RESUMES or 0)
  local packed = struct.pack(HEAD_FORMAT, expires(job), job.queued, job.due, job.prompt, job.n, guaranteed, job.whole)
  call('HSET', key('heads', lane), tenant, packed .. job.flight)
end

-- Where a job stands among its tenant's own: what came back first, then what is guaranteed, then the earliest due.
local function place_of(job)
  return job.due + (job.guaranteed == 1 and 0 or APART_MS) - (job.returned == 1 and 2 * APART_MS or 0)
end

-- A lane's window for a worker that computes a prompt's token in so many ms (0: not known).
local function window_at(lane, token_ms)
  return token_ms > 0 and math.max(WINDOW, lane.burst_ms / token_ms) or WINDOW
end

-- Weighted tokens by which a tenant is ahead of the least served other that waits in the lane, what it was promised and
-- waits for counted in; below all where no other waits.
local function lead_of(job, weight)
  local least = call('ZRANGE', key('backlog', job.lane), 0, 1, 'WITHSCORES')
  local other = least[1] == job.tenant and 3 or 1
  if not least[other] then return -math.huge end
  local counter = tonumber(call('ZSCORE', key('counters', job.lane), job.tenant) or 0)
  if not call('ZSCORE', key('backlog', job.lane), job.tenant) then counter = math.max(counter, tonumber(least[2])) end
  local promised = tonumber(call('HGET', key('vouched', job.lane), job.tenant) or 0)
  return counter + promised / weight - tonumber(least[other + 1])
end

-- Count what a tenant was promised and waits for, or count it no more, where `sign` is -1.
local function vouch(job, sign)
  local name, tokens = key('vouched', job.lane), sign * (job.prompt + job.n * QUANTUM_COST)
  if call('HINCRBY', name, job.tenant, string.format('%.0f', tokens)) <= 0 then call('HDEL', name, job.tenant) end
end

-- Put a job in its lane as queued since `job.queued`; a tenant that becomes backlogged is lifted.
local function seat(job)
  local lane, backlog, counters = job.lane, key('backlog', job.lane), key('counters', job.lane)
  if not call('ZSCORE', backlog, job.tenant) then
    local lowest = call('ZRANGE', backlog, 0, 0, 'WITHSCORES')[2]
    local start = lowest and tonumber(lowest) + BEHIND
    if not lowest then -- nobody waits: the lane is level
      lowest = call('ZREVRANGE', counters, 0, 0, 'WITHSCORES')[2] or '0'
      start = tonumber(lowest)
      call('HSET', key('level'), lane, lowest)
      OWED[lane] = math.max(0, owed_to(lane))
      call('HSET', key('owed'), lane, OWED[lane])
    end
    local counter = math.max(start, tonumber(call('ZSCORE', counters, job.tenant) or 0))
    call('ZADD', counters, counter, job.tenant)
    call('ZADD', backlog, counter, job.tenant)
  end
  local place = place_of(job)
  call('ZADD', key('queue', lane, job.tenant), place, job.flight)
  call('ZADD', key('waiting', lane), job.queued, job.flight)
  if job.follows == 1 then call('HINCRBY', key('followers'), job.tenant, 1) end
  if job.returned == 1 then
    call('ZADD', key('returned', lane), place, job.flight)
  elseif job.guaranteed == 1 then
    call('ZADD', key('guaranteed', lane), place, job.flight)
    vouch(job, 1)
  end
  call('ZADD', key('expiry'), expires(job), job.flight)
  if head_of(lane, job.tenant) == job.flight then file_head(lane, job.tenant, job) end
  IS_BACKLOGGED[lane] = true
end

-- Requests of a tenant that wait, over all lanes: those whose first job does.
local function waiting_of(tenant)
  local own = 0 - (call('HGET', key('followers'), tenant) or 0)
  for _, lane in ipairs(LANES) do own = own + call('ZCARD', key('queue', lane.name, tenant)) end
  return own
end

-- Free a job's seat.
local function unseat(job)
  local queue = key('queue', job.lane, job.tenant)
  call('ZREM', queue, job.flight)
  local head = head_of(job.lane, job.tenant)
  if not head and call('EXISTS', queue) == 0 then call('ZREM', key('backlog', job.lane), job.tenant) end
  call('ZREM', key('waiting', job.lane), job.flight)
  if job.follows == 1 and call('HINCRBY', key('followers'), job.tenant, -1) == 0 then
    call('HDEL', key('followers'), job.tenant)
  end
  if job.returned == 1 then
    call('ZREM', key('returned', job.lane), job.flight)
  elseif job.guaranteed == 1 then
    call('ZREM', key('guaranteed', job.lane), job.flight)
    vouch(job, -1)
  end
  call('ZREM', key('expiry'), job.flight)
  file_head(job.lane, job.tenant, head and load(head, HEAD_FIELDS))
  IS_BACKLOGGED[job.lane] = nil
end
