-- 1 + the tenant's own jobs ahead of a waiting one. Called by RedisQueue.position. ARGV: clock, job_id.
-- Returns false once it is not queued.
local job = load(ARGV[2])
if not job or job.state ~= 'queued' then return false end
return call('ZRANK', key('queue', job.lane, job.tenant), job.job_id) + 1
