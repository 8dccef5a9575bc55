-- Clear up after dead workers and gateways and expired jobs, JOBS_PER_CALL jobs at most; drop unneeded counters.
-- ARGV: clock.
-- Called by RedisQueue.reclaim, by the elected gateway each second, and again while more is left.
-- Returns {jobs taken from dead workers, 1 if more is left, ms until the next worker's lease expires (0: none)}; does
--   nothing just after the store was unavailable.
--   A record that the store has evicted is skipped, so that it does not block the others.
local quiet = is_quiet()
call('HSETNX', key('pulse'), 'served', NOW)
call('PEXPIRE', key('pulse'), KEPT_MS)
if quiet then return {0, 0, 0} end
local left, returned = JOBS_PER_CALL - expire(JOBS_PER_CALL), {} -- jobs that this call may still touch, and those that wait again

-- Cancel the jobs of a dead gateway. Its events expire an hour after the last of them; until then an erasure trims them.
local function abandon(gateway)
  local jobs = call('ZRANGE', key('jobs', gateway), 0, left - 1)
  for _, job_id in ipairs(jobs) do
    local job = load(job_id)
    if job then stop(job) end
    call('ZREM', key('jobs', gateway), job_id)
  end
  left = left - #jobs
  if left <= 0 then return end
  call('ZREM', key('gateways'), gateway)
  call('ZADD', key('past_gateways'), NOW, gateway)
  call('ZREMRANGEBYSCORE', key('past_gateways'), '-inf', NOW - 2 * RECORD_TTL_MS)
  call('PEXPIRE', key('past_gateways'), 2 * RECORD_TTL_MS)
end

-- Return the jobs of a dead worker to the queue. Its next `renew` reports the loss, even if some jobs are left.
local function lose_worker(worker)
  local held = key('held', worker)
  local jobs = call('ZRANGE', held, 0, left - 1)
  for _, job_id in ipairs(jobs) do
    local job = load(job_id)
    if job then lose(job) else call('ZREM', held, job_id) end
    if job and job.state == 'queued' then returned[#returned + 1] = job end
  end
  left = left - #jobs
  withdraw_room(worker)
  call('DEL', key('leases', worker))
  if #jobs > 0 then call('ZADD', key('lost'), NOW, worker) end
  if left > 0 then call('ZREM', key('workers'), worker) end
  return #jobs
end

-- The names with expired leases. Leases beyond the maximum, after the clock was set back, start anew.
local function lapsed(leases, length)
  local latest = NOW + length
  for _, name in ipairs(call('ZRANGEBYSCORE', leases, string.format('(%.0f', latest), '+inf', 'LIMIT', 0, JOBS_PER_CALL)) do
    call('ZADD', leases, latest, name)
  end
  return call('ZRANGEBYSCORE', leases, '-inf', NOW, 'LIMIT', 0, JOBS_PER_CALL)
end

local gateways, workers, count = lapsed(key('gateways'), GATEWAY_LEASES * LEASE_MS), lapsed(key('workers'), LEASE_MS), 0
for _, gateway in ipairs(gateways) do
  if left > 0 then abandon(gateway) end
end
for _, worker in ipairs(workers) do
  if left > 0 then count = count + lose_worker(worker) end
end
call('ZREMRANGEBYSCORE', key('lost'), '-inf', NOW - RECORD_TTL_MS)
for _, job in ipairs(returned) do call_worker(job, '') end
flush_shares()
local is_more = left <= 0 or #gateways == JOBS_PER_CALL or #workers == JOBS_PER_CALL
for _, lane in ipairs(LANES) do is_more = forget_counters(lane.name) or is_more end
local first = call('ZRANGE', key('workers'), 0, 0, 'WITHSCORES')[2]
return {count, is_more and 1 or 0, first and math.max(1, math.ceil(first - NOW)) or 0}
