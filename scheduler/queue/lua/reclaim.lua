-- Clear up after the dead and the late. Called by RedisQueue.reclaim, by every gateway each second. ARGV: clock.
-- Returns how many jobs were taken from workers whose lease lapsed; does nothing while the store has just been away.
-- A record that the store itself has dropped (eviction) is passed over: it must not stop the clearing for all.
local quiet = is_quiet()
call('HSETNX', key('pulse'), 'served', NOW)
call('PEXPIRE', key('pulse'), KEPT_MS)
if quiet then return 0 end
expire()

-- Cancel what a dead gateway asked for, a part per call.
local function abandon(gateway)
  local jobs = call('ZRANGE', key('jobs', gateway), 0, SWEEP - 1)
  for _, job_id in ipairs(jobs) do
    local job = load(job_id)
    if job then stop(job) end
    call('ZREM', key('jobs', gateway), job_id)
  end
  if #jobs < SWEEP then call('ZREM', key('gateways'), gateway) end
end

local function bury(worker)
  local jobs = call('ZRANGE', key('held', worker), 0, -1)
  for _, job_id in ipairs(jobs) do
    local job = load(job_id)
    if job then lose(job) end
  end
  call('DEL', key('held', worker))
  call('ZREM', key('workers'), worker)
  if #jobs > 0 then call('ZADD', key('lost'), NOW, worker) end
  return #jobs
end

-- A lease further away than any reaches was dated by a clock that has stepped back since: it starts anew.
local function lapsed(leases, length)
  local latest = NOW + length
  for _, name in ipairs(call('ZRANGEBYSCORE', leases, string.format('(%.0f', latest), '+inf', 'LIMIT', 0, SWEEP)) do
    call('ZADD', leases, latest, name)
  end
  return call('ZRANGEBYSCORE', leases, '-inf', NOW, 'LIMIT', 0, SWEEP)
end

for _, gateway in ipairs(lapsed(key('gateways'), GATEWAY_LEASES * LEASE_MS)) do abandon(gateway) end
call('ZREMRANGEBYSCORE', key('lost'), '-inf', NOW - RECORD_TTL_MS)
local count = 0
for _, worker in ipairs(lapsed(key('workers'), LEASE_MS)) do count = count + bury(worker) end
if count > 0 then wake() end
flush_shares()
return count
