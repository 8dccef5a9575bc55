-- What a worker holds: its heartbeat, and what it hands back. For workers.

-- name: renew
-- A worker's heartbeat, for all it holds. Called by RedisQueue.renew, for workers.
-- ARGV: clock, worker, serial, '1' if the jobs it holds follow or '', those jobs.
-- A job leased to it for more than one lease that is not among them was in an answer that got lost: it is given back.
-- Returns 0 if its lease had lapsed and its jobs were taken away, to one call and its repeats (same serial); else 1.
local worker, serial, known, returned = ARGV[2], ARGV[3], {}, false
is_quiet()
call('HSET', key('pulse'), 'served', NOW)
call('ZADD', key('workers'), NOW + LEASE_MS, worker)
if ARGV[4] == '1' then
  for i = 5, #ARGV do known[ARGV[i]] = true end
  for _, job_id in ipairs(call('ZRANGE', key('held', worker), 0, -1)) do
    local job = not known[job_id] and load(job_id)
    if job and job.taken <= NOW - LEASE_MS then
      give_back(job)
      returned = true
    end
  end
end
if returned then wake() end
flush_shares()
if call('ZREM', key('lost'), worker) == 1 then
  call('SET', key('informed', worker), serial, 'PX', RECORD_TTL_MS)
  return 0
end
return call('GET', key('informed', worker)) == serial and 0 or 1

-- name: release
-- Hand jobs back, on drain: to the head of their lane, not counted as a loss. Called by RedisQueue.release.
-- ARGV: clock, worker, jobs. What the worker does not hold stays as it is. Returns nothing.
local worker, returned = ARGV[2], false
for i = 3, #ARGV do
  local job = load(ARGV[i])
  if job and job.state == 'leased' and job.worker == worker then
    give_back(job)
    returned = true
  end
end
if returned then wake() end
flush_shares()
