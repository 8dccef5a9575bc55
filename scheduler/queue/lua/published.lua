-- What there is to go on from of a job. Called by RedisQueue.published, for gateways. ARGV: clock, job_id.
-- Returns {what tells its prompt from others, packed ids of choice 0, of choice 1, …}; false where it is unknown.
local job = load(ARGV[2], {'state', 'n'})
if not job then return false end
local answer = {call('HGET', key('job', job.job_id), 'print') or ''}
for choice = 0, job.n - 1 do answer[choice + 2] = call('GET', key('ids', job.job_id, choice)) or '' end
return answer
