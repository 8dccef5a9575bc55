-- Shared after `base` and `promises`: a job's charges, its places in the queue, and its state changes.
-- The rules are in scheduler/queue/take_order.py (counters and places) and scheduler/queue/memory_jobs.py (states).

-- Counters of tenants, share floors of lanes.
local FLOORS, IS_BACKLOGGED, SPENT
local WAITS -- by lane and tenant, whether the tenant has jobs left after one was removed
local IS_LASTING -- by tenant, whether the expiry of its ended jobs is set

AT_BEGIN[#AT_BEGIN + 1] = function() FLOORS, IS_BACKLOGGED, SPENT, WAITS, IS_LASTING = {}, {}, {}, {}, {} end

local function is_backlogged(lane)
  if IS_BACKLOGGED[lane] == nil then IS_BACKLOGGED[lane] = call('EXISTS', key('waiting', lane)) == 1 end
  return IS_BACKLOGGED[lane]
end

-- The account of a lane's share floor (scheduler/queue/share_floor.py), cached here until flush_shares.
local FLOOR_FORMAT = '<dddd' -- balance, due, lent, wait

local function floor_of(lane)
  local floor = FLOORS[lane.name]
  if not floor then
    floor = {balance = 0, due = 0, lent = 0, wait = 1}
    local packed = call('HGET', key('floors'), lane.name)
    if packed then floor.balance, floor.due, floor.lent, floor.wait = struct.unpack(FLOOR_FORMAT, packed) end
    FLOORS[lane.name] = floor
  end
  return floor
end

-- Weighted tokens by which a lane is behind its share floor.
local function debt_of(lane)
  local floor = floor_of(lane)
  return floor.balance + lane.share_floor * floor.due - floor.lent
end

-- Start a waiting period of a lane in which no job waited.
local function begin_wait(lane)
  if lane.share_floor > 0 and debt_of(lane) < 0 then
    local floor = floor_of(lane)
    floor.balance, floor.due, floor.lent, floor.wait, floor.is_changed = 0, 0, 0, floor.wait + 1, true
  end
end

local function add_to_balance(floor, due, own)
  floor.balance = math.max(-FLOOR_LIMIT, math.min(FLOOR_LIMIT, floor.balance + due - own))
end

-- Charge a job in advance to all share floors. Returns one mark per lane, by which take_back identifies the charge.
local function lend(job, tokens)
  local marks = {}
  for level, lane in ipairs(LANES) do
    marks[level] = 0
    if lane.share_floor > 0 then
      local floor, is_due, is_own = floor_of(lane), is_backlogged(lane.name), lane.name == job.lane
      if is_due then floor.due = floor.due + tokens end
      if is_own then floor.lent = floor.lent + tokens end
      if is_due or is_own then marks[level], floor.is_changed = 2 * floor.wait + (is_due and 1 or 0), true end
    end
  end
  return table.concat(marks, ' ')
end

-- Remove a part of a job's charge to the share floors, because it was computed or never will be.
local function take_back(job, tokens, is_computed)
  if tokens == 0 then return end
  local level = 0
  for mark in string.gmatch(job.marks or '', '%d+') do -- absent in records of older releases
    level = level + 1
    local lane = LANES[level]
    local floor = mark ~= '0' and floor_of(lane)
    if floor and math.floor(mark / 2) == floor.wait then
      local is_due, is_own = mark % 2 == 1, lane.name == job.lane
      if is_due then floor.due = floor.due - tokens end
      if is_own then floor.lent = floor.lent - tokens end
      if is_computed then add_to_balance(floor, is_due and lane.share_floor * tokens or 0, is_own and tokens or 0) end
      floor.is_changed = true
    end
  end
end

-- Record computed tokens that were not charged to the share floors in advance.
local function serve(job, tokens)
  if tokens == 0 then return end
  for _, lane in ipairs(LANES) do
    if lane.share_floor > 0 then
      local floor = floor_of(lane)
      add_to_balance(floor, is_backlogged(lane.name) and lane.share_floor * tokens or 0, lane.name == job.lane and tokens or 0)
      floor.is_changed = true
    end
  end
end

local function count(lane_name, tenant, service)
  local counters = key('counters', lane_name)
  local counter = tonumber(call('ZADD', counters, 'XX', 'INCR', service, tenant))
  if counter then
    if WAITS[key(lane_name, tenant)] ~= false and is_backlogged(lane_name) then
      call('ZADD', key('backlog', lane_name), 'XX', counter, tenant)
    end
  else -- no counter: the tenant has the level, and does not wait here
    counter = tonumber(call('HGET', key('level'), lane_name) or 0) + service
    call('ZADD', counters, counter, tenant)
  end
  return counter
end

-- Charge a job's tenant for service (negative: a refund).
local function charge(job, tokens)
  if tokens ~= 0 then job.counter = count(job.lane, job.tenant, tokens / job.weight) end
end

-- Record tokens to charge, summed per tenant until charge_spent.
local function spend(job, tokens)
  if tokens == 0 then return end
  local name = key(job.lane, job.tenant)
  if not SPENT[name] then
    SPENT[name] = {lane = job.lane, tenant = job.tenant, service = 0}
    SPENT[#SPENT + 1] = SPENT[name]
  end
  SPENT[name].service = SPENT[name].service + tokens / job.weight
end

-- Must be called before jobs are chosen.
local function charge_spent()
  for _, each in ipairs(SPENT) do count(each.lane, each.tenant, each.service) end
  SPENT = {}
end

-- Must be called once at the end of every function that charges or seats.
local function flush_shares()
  charge_spent()
  for lane, floor in pairs(FLOORS) do
    if floor.is_changed then
      call('HSET', key('floors'), lane, struct.pack(FLOOR_FORMAT, floor.balance, floor.due, floor.lent, floor.wait))
    end
  end
end

-- A job's places in its lane.
local HEAD_FIELDS = {'lane', 'due', 'queued', 'hard_first', 'hard_end', 'prompt', 'n', 'guaranteed', 'whole',
  'generated'}
local HEAD_FORMAT = '<dddI4I2BI4' -- when it expires, queued, due, prompt, n, guaranteed, whole; its job_id follows
local RESUMES = 2 -- added to `guaranteed` if the job has tokens: its other sort fields are in its record

-- When a waiting job expires: at its hard deadline or, without one, after the lane's maximum wait. Once it has run, only
-- its gateway knows whether the first token came in time.
local function expires(job)
  local has_run = job.generated > 0 or job.returned == 1
  local hard = has_run and job.hard_end or math.min(job.hard_end, job.hard_first)
  return hard < NEVER_MS and hard or job.queued + LANE[job.lane].max_wait_ms
end

-- A tenant's first job that never ran: returned ones have negative scores.
local function head_of(lane, tenant)
  return call('ZRANGEBYSCORE', key('queue', lane, tenant), 0, '+inf', 'LIMIT', 0, 1)[1]
end

-- Store the sort fields of a tenant's first job, so that one read returns those of many tenants.
local function file_head(lane, tenant, job)
  if not job then return call('HDEL', key('heads', lane), tenant) end
  local guaranteed = job.guaranteed + (job.generated > 0 and RESUMES or 0)
  local packed = struct.pack(HEAD_FORMAT, expires(job), job.queued, job.due, job.prompt, job.n, guaranteed, job.whole)
  call('HSET', key('heads', lane), tenant, packed .. job.job_id)
end

-- A job's score among its tenant's jobs: returned ones first, then guaranteed ones, then by due time.
local function place_of(job)
  return job.due + (job.guaranteed == 1 and 0 or APART_MS) - (job.returned == 1 and 2 * APART_MS or 0)
end

-- A lane's window Θ for a worker with this time per prompt token (0: not known).
local function window_at(lane, token_ms)
  return token_ms > 0 and math.max(WINDOW, lane.burst_ms / token_ms) or WINDOW
end

-- Weighted tokens by which a tenant is ahead of the least served other tenant that waits in the lane. Its guaranteed
-- waiting jobs count. Returns -inf if no other tenant waits.
local function lead_of(job, weight)
  local least = call('ZRANGE', key('backlog', job.lane), 0, 1, 'WITHSCORES')
  local other = least[1] == job.tenant and 3 or 1
  if not least[other] then return -math.huge end
  local counter = tonumber(call('ZSCORE', key('counters', job.lane), job.tenant) or 0)
  if not call('ZSCORE', key('backlog', job.lane), job.tenant) then counter = math.max(counter, tonumber(least[2])) end
  local promised = tonumber(call('HGET', key('vouched', job.lane), job.tenant) or 0)
  return counter + promised / weight - tonumber(least[other + 1])
end

-- Add a job to its tenant's guaranteed waiting work, or remove it if `sign` is -1.
local function vouch(job, sign)
  local name, tokens = key('vouched', job.lane), sign * (job.prompt + job.n * QUANTUM_COST)
  if call('HINCRBY', name, job.tenant, string.format('%.0f', tokens)) <= 0 then call('HDEL', name, job.tenant) end
end

-- Queue a job in its lane since `job.queued`; a tenant that becomes backlogged is lifted.
local function seat(job)
  local lane, backlog, counters = job.lane, key('backlog', job.lane), key('counters', job.lane)
  if not call('ZSCORE', backlog, job.tenant) then
    local lowest = call('ZRANGE', backlog, 0, 0, 'WITHSCORES')[2]
    local start = lowest and tonumber(lowest) + BEHIND
    if not lowest then
      start = level_out(lane)
      begin_wait(LANE[lane])
      call('HDEL', key('queued_tokens'), lane)
    end
    local counter = math.max(start, tonumber(call('ZSCORE', counters, job.tenant) or 0), (rivals_of(lane)))
    call('ZADD', counters, counter, job.tenant)
    call('ZADD', backlog, counter, job.tenant)
  end
  local place = place_of(job)
  call('ZADD', key('queue', lane, job.tenant), place, job.job_id)
  call('ZADD', key('waiting', lane), job.queued, job.job_id)
  call('HINCRBY', key('queued_tokens'), lane, job.prompt)
  if job.follows == 1 then call('HINCRBY', key('followers'), job.tenant, 1) end
  if job.returned == 1 then
    call('ZADD', key('returned', lane), place, job.job_id)
  elseif job.guaranteed == 1 then
    call('ZADD', key('guaranteed', lane), place, job.job_id)
    vouch(job, 1)
  end
  call('ZADD', key('expiry'), expires(job), job.job_id)
  if head_of(lane, job.tenant) == job.job_id then file_head(lane, job.tenant, job) end
  IS_BACKLOGGED[lane], WAITS[key(lane, job.tenant)] = true, true
end

-- Drop at most PER_CALL counters of a lane that are below those of all waiting tenants. The lowest waiting counter is
-- the new level; a tenant that starts to wait is lifted above it anyway. Returns whether more are left.
local function forget_counters(lane)
  local lowest = call('ZRANGE', key('backlog', lane), 0, 0, 'WITHSCORES')[2]
  if not lowest then return false end
  local below = call('ZCOUNT', key('counters', lane), '-inf', '(' .. lowest)
  if below == 0 then return false end
  call('ZREMRANGEBYRANK', key('counters', lane), 0, math.min(below, PER_CALL) - 1)
  call('HSET', key('level'), lane, lowest)
  return below > PER_CALL
end

-- A tenant's waiting requests, over all lanes, counted by their first jobs.
local function waiting_of(tenant)
  local own = 0 - (call('HGET', key('followers'), tenant) or 0)
  for _, lane in ipairs(LANES) do own = own + call('ZCARD', key('queue', lane.name, tenant)) end
  return own
end

-- Remove a waiting job from its lane. Returns whether its tenant has others there.
local function unseat(job)
  local queue = key('queue', job.lane, job.tenant)
  call('ZREM', queue, job.job_id)
  local head = head_of(job.lane, job.tenant)
  local waits = head ~= nil or call('EXISTS', queue) == 1
  if not waits then call('ZREM', key('backlog', job.lane), job.tenant) end
  call('ZREM', key('waiting', job.lane), job.job_id)
  local tokens = key('queued_tokens')
  if call('HINCRBY', tokens, job.lane, -job.prompt) <= 0 then call('HDEL', tokens, job.lane) end
  if job.follows == 1 and call('HINCRBY', key('followers'), job.tenant, -1) == 0 then
    call('HDEL', key('followers'), job.tenant)
  end
  if job.returned == 1 then
    call('ZREM', key('returned', job.lane), job.job_id)
  elseif job.guaranteed == 1 then
    call('ZREM', key('guaranteed', job.lane), job.job_id)
    vouch(job, -1)
  end
  call('ZREM', key('expiry'), job.job_id)
  file_head(job.lane, job.tenant, head and load(head, HEAD_FIELDS))
  IS_BACKLOGGED[job.lane], WAITS[key(job.lane, job.tenant)] = nil, waits
  return waits
end

-- The end of a job.

-- Refund what was charged when the job was taken and has not been computed.
local function refund(job)
  charge(job, -job.credit)
  take_back(job, job.credit, false)
  job.credit = 0
end

-- List a tenant's ended job until its record expires, so that an erasure finds it.
local function list_ended(job, until_ms)
  local ended = key('ended', job.tenant)
  call('ZADD', ended, until_ms, job.job_id)
  if not IS_LASTING[job.tenant] then call('PEXPIRE', ended, KEPT_MS) end -- the longest lifetime of a record
  IS_LASTING[job.tenant] = true
end

local function drop(job)
  local keys = {key('job', job.job_id)}
  for choice = 0, job.n - 1 do keys[choice + 2] = key('ids', job.job_id, choice) end
  call('DEL', unpack(keys)) -- at most 1 + n
  call('ZREM', key('ended', job.tenant), job.job_id)
end

-- End a job for good; `silent` if its worker notifies the gateway. The prompt is deleted at once, the rest by `forget`
-- or, if no gateway is left, when it expires.
local function finish(job, outcome, message, silent)
  if job.state == 'queued' then unseat(job) else call('ZREM', key('held', job.worker), job.job_id) end
  refund(job)
  release_claim(job)
  call('ZREM', key('jobs', job.gateway), job.job_id)
  job.state, job.outcome = 'ended', outcome
  local record = key('job', job.job_id)
  call('HSET', record, 'state', 'ended', 'outcome', outcome, 'credit', 0, 'generated', job.generated, 'body', '')
  call('PEXPIRE', record, KEPT_MS)
  list_ended(job, NOW + KEPT_MS)
  if silent then return end
  local event = {type = 'finished', job_id = job.job_id, epoch = job.epoch, outcome = outcome, error = message or ''}
  tell(key('events', job.gateway), 'e', cmsgpack.pack(event))
end

-- End at most `most` expired waiting jobs. Returns how many there were.
local function expire(most)
  local late = call('ZRANGEBYSCORE', key('expiry'), '-inf', NOW, 'LIMIT', 0, most)
  for _, job_id in ipairs(late) do
    local job = load(job_id)
    if job then finish(job, 'expired') else call('ZREM', key('expiry'), job_id) end
  end
  return #late
end

-- The other state changes of a job.

-- The answer of `turn` for a leased job, which was loaded with its body.
local function describe_lease(job)
  local has_tokens = (job.epoch > 1 or job.generated > 0) and 1 or 0 -- its gateway may have some
  return {job.body, job.epoch, NOW - job.arrived, job.guaranteed, has_tokens}
end

-- Lease a job that does not wait to a worker, and charge `cost` provisionally. Its changed fields are not stored.
local function assign(job, worker, cost)
  job.state, job.worker, job.taken, job.returned = 'leased', worker, NOW, 0
  job.epoch, job.credit, job.marks = job.epoch + 1, cost, lend(job, cost)
  call('ZADD', key('held', worker), job.losses, job.job_id)
  charge(job, cost)
end

-- Lease a job as `assign` does, and store that. It was loaded with its body. Returns the answer of `turn`.
local function hold(job, worker, cost)
  assign(job, worker, cost)
  call('HSET', key('job', job.job_id), 'state', job.state, 'worker', worker, 'taken', NOW, 'returned', 0,
    'epoch', job.epoch, 'credit', cost, 'marks', job.marks, 'given', '')
  return describe_lease(job)
end

-- Return a leased job to the head of its lane; end it if it was cancelled.
local function give_back(job)
  if job.cancelled == 1 then return finish(job, 'cancelled') end
  call('ZREM', key('held', job.worker), job.job_id)
  refund(job)
  job.state, job.worker, job.returned, job.queued, job.epoch = 'queued', '', 1, NOW, job.epoch + 1
  call('HSET', key('job', job.job_id), 'state', 'queued', 'worker', '', 'returned', 1, 'queued', NOW,
    'epoch', job.epoch, 'credit', 0, 'losses', job.losses)
  seat(job)
end

-- Return a leased job of a dead worker to the queue; after MAX_LOSSES it ends as failed.
local function lose(job)
  job.losses = job.losses + 1
  if job.losses >= MAX_LOSSES and job.cancelled == 0 then finish(job, 'failed', POISONED) else give_back(job) end
end

-- End a waiting job; ask the holder of a leased one to stop, once.
local function stop(job)
  if job.state == 'queued' then
    finish(job, 'cancelled')
  elseif job.state == 'leased' and job.cancelled == 0 then
    job.cancelled = 1
    call('HSET', key('job', job.job_id), 'cancelled', 1)
    tell(key('control', job.worker), 'c', cmsgpack.pack({type = 'cancel', job_id = job.job_id}))
  end
end

-- After half a lease without a renew or reclaim, no job is taken away for one full lease.
local function is_quiet()
  local pulse = call('HMGET', key('pulse'), 'seen', 'quiet_until')
  local quiet_until = tonumber(pulse[2] or 0)
  if pulse[1] and NOW - tonumber(pulse[1]) > LEASE_MS / 2 then quiet_until = NOW + LEASE_MS end
  call('HSET', key('pulse'), 'seen', NOW, 'quiet_until', quiet_until)
  return NOW < quiet_until and quiet_until <= NOW + LEASE_MS -- the clock may have jumped ahead and back
end

-- Whether no worker has renewed its lease for `grace_ms`, although the queue was checked regularly.
local function is_orphan(grace_ms)
  local pulse = call('HMGET', key('pulse'), 'seen', 'quiet_until', 'served')
  if not pulse[3] then return false end
  local seen, quiet_until, served = tonumber(pulse[1] or 0), tonumber(pulse[2] or 0), tonumber(pulse[3])
  if NOW - seen > LEASE_MS / 2 or (NOW < quiet_until and quiet_until <= NOW + LEASE_MS) then return false end
  return NOW - served >= grace_ms
end
