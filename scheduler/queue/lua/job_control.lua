-- A gateway's commands for its jobs: waiting ones change here, leased ones through their holder's control stream.

-- name: cancel
-- End a waiting job, or ask a leased one's holder to stop it. Called by RedisQueue.cancel, for gateways. Idempotent.
-- ARGV: clock, job_id. Returns the record as `record` does; false if it is unknown.
local job = load(ARGV[2])
if not job then return false end
stop(job)
flush_shares()
return describe(job)

-- name: grant
-- Raise the token limit of each choice. A repeat is sent to the holder again, since the first may have been lost.
-- Called by RedisQueue.grant, for gateways.
-- ARGV: clock, job_id, granted_until (tokens), the encoded Grant. Returns 0 if the job is unknown or has ended.
local job, granted_until = load(ARGV[2]), tonumber(ARGV[3])
if not job or job.state == 'ended' then return 0 end
if granted_until >= job.granted then
  call('HSET', key('job', job.job_id), 'granted', granted_until)
  if job.state == 'leased' then tell(key('control', job.worker), 'c', ARGV[4]) end
end
return 1

-- name: amend
-- Replace a job's recorded tokens by those of its client, and queue it again to continue from them.
-- Called by RedisQueue.amend, for gateways. A repeat (the job's epoch has passed the given one) changes nothing.
-- ARGV: clock, job_id, the epoch whose tokens differ, for each choice its token ids (4 bytes each).
-- Returns 1, or 0 if the job is unknown or has ended.
local job = load(ARGV[2])
if not job or job.state == 'ended' then return 0 end
if job.epoch > tonumber(ARGV[3]) then return 1 end
job.generated = 0
for choice = 0, job.n - 1 do
  local ids = ARGV[4 + choice]
  call('SET', key('ids', job.job_id, choice), ids)
  job.generated = job.generated + #ids / 4
end
call('HSET', key('job', job.job_id), 'generated', job.generated)
if job.state == 'leased' then
  give_back(job)
  wake()
end
flush_shares()
return 1
