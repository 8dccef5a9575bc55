-- Lease to a worker the jobs that it can start, most urgent first. Called by RedisQueue.take, for workers.
-- ARGV: clock, worker, then for each lane in order of rank: sequences, KV tokens that can be started.
-- Returns a list of {body, epoch, ms since arrival, granted_until, packed ids of choice 0, of choice 1, …}; empty
--   while the worker has not heard (`renew`) that it lost its jobs.
local worker, taken, tenants = ARGV[2], {}, {}

local function offer_all(flights)
  for _, flight in ipairs(flights) do offer(flight) end
end

-- The first of the tenant's flights that never ran: returned ones have negative scores, and are offered apart.
local function offer_head(lane, tenant)
  offer_all(call('ZRANGEBYSCORE', key('queue', lane, tenant), 0, '+inf', 'LIMIT', 0, 1))
end

local function offer_lane(lane)
  tenants[lane.name] = {}
  if SEQUENCES[lane.level] == 0 then return end
  offer_all(call('ZRANGE', key('returned', lane.name), 0, TENANTS_PER_TAKE - 1))
  if lane.level > 1 then
    local old = NOW - lane.max_wait_ms / 2
    offer_all(call('ZRANGEBYSCORE', key('waiting', lane.name), '-inf', old, 'LIMIT', 0, TENANTS_PER_TAKE))
  end
  for _, tenant in ipairs(call('ZRANGE', key('backlog', lane.name), 0, TENANTS_PER_TAKE - 1)) do
    tenants[lane.name][tenant] = true
    offer_head(lane.name, tenant)
  end
end

local function take()
  call('ZADD', key('workers'), 'NX', NOW + LEASE_MS, worker)
  open_room(worker, 3)
  for _, lane in ipairs(LANES) do offer_lane(lane) end
  local job = pick()
  while job do
    if claim(job) then
      local whole = load(job.flight)
      taken[#taken + 1] = lease(whole, worker, provisional_cost(job))
      FLOORS, COUNTERS[job.lane][job.tenant] = {}, whole.counter
      if tenants[job.lane][job.tenant] then offer_head(job.lane, job.tenant) end
    end
    job = pick()
  end
end

expire()
if not call('ZSCORE', key('lost'), worker) then take() end
flush_shares()
return taken
