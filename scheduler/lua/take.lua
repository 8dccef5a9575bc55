-- Lease to a worker the jobs that it can start, most urgent first. Called by RedisQueue.take, for workers.
-- ARGV: clock, worker, then for each lane in order of rank: sequences, KV tokens that can be started.
-- Returns a list of {body, epoch, ms since arrival, granted_until, packed ids of choice 0, of choice 1, …}; empty
--   while the worker has not heard (`renew`) that it lost its jobs.
expire()
local worker, taken = ARGV[2], {}
local held = key('held', worker)
local has_suspect = call('ZCOUNT', held, SUSPECT_LOSSES, '+inf') > 0
local sequences, kv_tokens, tenants = {}, {}, {}

local function offer_all(flights)
  for _, flight in ipairs(flights) do offer(flight) end
end

for level, lane in ipairs(LANES) do
  sequences[level], kv_tokens[level] = tonumber(ARGV[2 * level + 1]), tonumber(ARGV[2 * level + 2])
  tenants[lane.name] = {}
  if sequences[level] > 0 then
    offer_all(call('ZRANGE', key('returned', lane.name), 0, TENANTS_PER_TAKE - 1))
    local old = NOW - lane.max_wait_ms / 2
    if level > 1 then
      offer_all(call('ZRANGEBYSCORE', key('waiting', lane.name), '-inf', old, 'LIMIT', 0, TENANTS_PER_TAKE))
    end
    for _, tenant in ipairs(call('ZRANGE', key('backlog', lane.name), 0, TENANTS_PER_TAKE - 1)) do
      tenants[lane.name][tenant] = true
      offer_all(call('ZRANGE', key('queue', lane.name, tenant), 0, 0))
    end
  end
end

local function fits(job)
  local level, kv_need = LANE[job.lane].level, job.prompt + job.generated + job.n
  if job.n > sequences[level] or kv_need > kv_tokens[level] then return false end
  if job.losses >= SUSPECT_LOSSES and has_suspect then return false end
  for below = level, #LANES do
    sequences[below], kv_tokens[below] = sequences[below] - job.n, kv_tokens[below] - kv_need
  end
  has_suspect = has_suspect or job.losses >= SUSPECT_LOSSES
  return true
end

local is_lost = call('ZSCORE', key('lost'), worker)
if not is_lost then call('ZADD', key('workers'), 'NX', NOW + LEASE_MS, worker) end
local job = not is_lost and pick()
while job do
  if fits(job) then
    taken[#taken + 1] = lease(job, worker, provisional_cost(job))
    FLOORS, COUNTERS[job.lane][job.tenant] = {}, job.counter
    if tenants[job.lane][job.tenant] then offer_all(call('ZRANGE', key('queue', job.lane, job.tenant), 0, 0)) end
  end
  job = pick()
end
flush_shares()
return taken
