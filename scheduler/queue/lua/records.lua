-- What is known of a job, and for how long. For gateways.

-- name: record
-- What is known of a job. Called by RedisQueue.record. ARGV: clock, job_id.
-- Returns {state, outcome, prompt tokens, worker, tenant, lane, gateway, cancelled, epoch, tokens of choice 0, …};
--   false where it was never put, or is forgotten.
local job = load(ARGV[2])
return job and describe(job) or false

-- name: published
-- What there is to go on from of a job. Called by RedisQueue.published, for gateways. ARGV: clock, job_id.
-- Returns {what tells its prompt from others, packed ids of choice 0, of choice 1, …}; false where it is unknown.
local job = load(ARGV[2], {'state', 'n'})
if not job then return false end
local answer = {call('HGET', key('job', job.job_id), 'print') or ''}
for choice = 0, job.n - 1 do answer[choice + 2] = call('GET', key('ids', job.job_id, choice)) or '' end
return answer

-- name: keep
-- Keep the records of jobs that have ended until a time, if not less long. Called by RedisQueue.keep, for gateways.
-- ARGV: clock, for each (PER_CALL at most): job_id, until when (epoch ms). Returns nothing.
local UNLISTED = 2 -- of records that have expired, for each that is kept: the list of a tenant shrinks faster than it grows
for i = 2, #ARGV, 2 do
  local job = load(ARGV[i], {'state', 'tenant', 'n'})
  local left_ms = math.max(1, ARGV[i + 1] - NOW)
  if job and job.state == 'ended' and left_ms < call('PTTL', key('job', job.job_id)) then
    call('PEXPIRE', key('job', job.job_id), left_ms)
    for choice = 0, job.n - 1 do call('PEXPIRE', key('ids', job.job_id, choice), left_ms) end
    list_ended(job, NOW + left_ms)
    local ended = key('ended', job.tenant)
    for _, expired in ipairs(call('ZRANGEBYSCORE', ended, '-inf', NOW, 'LIMIT', 0, UNLISTED)) do
      call('ZREM', ended, expired)
    end
  end
end

-- name: forget
-- Drop the records of jobs that have ended; others stay. Called by RedisQueue.forget, for gateways.
-- ARGV: clock, jobs (PER_CALL at most). Returns nothing.
for i = 2, #ARGV do
  local job = load(ARGV[i], {'state', 'tenant', 'n'})
  if job and job.state == 'ended' then drop(job) end
end
