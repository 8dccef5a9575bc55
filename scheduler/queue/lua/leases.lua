-- A worker's heartbeat, and the return of its jobs. For workers.

-- name: renew
-- A worker's heartbeat, for all it holds. Called by RedisQueue.renew, for workers.
-- ARGV: clock, worker, serial. Returns 0 to one call and its repeats (same serial) if its lease had expired and its jobs
--   were taken away; else 1.
local worker, serial = ARGV[2], ARGV[3]
is_quiet()
call('HSET', key('pulse'), 'served', NOW)
call('ZADD', key('workers'), NOW + LEASE_MS, worker)
if call('ZREM', key('lost'), worker) == 1 then
  call('SET', key('informed', worker), serial, 'PX', RECORD_TTL_MS)
  return 0
end
return call('GET', key('informed', worker)) == serial and 0 or 1

-- name: release
-- Give jobs back to the head of their lane, without counting a loss. Called by RedisQueue.release, on drain, and by
-- RedisQueue.renew for jobs of an answer that was lost.
-- ARGV: clock, worker, '1' (only jobs leased more than one lease ago) or '', jobs (JOBS_PER_CALL at most). Jobs held by
--   others are ignored. A worker that returned any has no room until its next `turn`. Returns nothing.
local worker, are_old = ARGV[2], ARGV[3] == '1'
for i = 4, #ARGV do
  local job = load(ARGV[i])
  local is_held = job and job.state == 'leased' and job.worker == worker
  if is_held and (not are_old or job.taken <= NOW - LEASE_MS) then
    give_back(job)
    withdraw_room(worker)
    if job.state == 'queued' then call_worker(job, '') end
  end
end
flush_shares()
