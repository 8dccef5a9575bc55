-- Take a job that has no token yet out of a queue that nobody serves, to be put elsewhere: nothing of it stays, nobody
-- is told. Called by RedisQueue.withdraw, for the job's own gateway. ARGV: clock, job_id, grace_ms as of `orphan`.
-- Returns 1 where it is out, 0 where it stays; false where it is unknown, as where this was done before.
local job = load(ARGV[2])
if not job then return false end
if job.state ~= 'queued' or job.generated > 0 or not is_orphan(tonumber(ARGV[3])) then return 0 end
unseat(job)
release_claim(job)
call('ZREM', key('jobs', job.gateway), job.job_id)
local keys = {key('job', job.job_id)}
for choice = 0, job.n - 1 do keys[choice + 2] = key('ids', job.job_id, choice) end
call('DEL', unpack(keys))
return 1
