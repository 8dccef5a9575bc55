-- Records of jobs, and their lifetime. For gateways.

-- name: record
-- The record of a job. Called by RedisQueue.record. ARGV: clock, job_id.
-- Returns {state, outcome, prompt tokens, worker, tenant, lane, gateway, cancelled, epoch, guaranteed, output tokens};
--   false if it was never put, or was forgotten.
local job = load(ARGV[2])
return job and describe(job) or false

-- name: published
-- The output that workers have handed in for a job. Called by RedisQueue.published, for gateways. ARGV: clock, job_id.
-- Returns {fingerprint of its prompt, packed ids of choice 0, of choice 1, …}; false if it is unknown.
local job = load(ARGV[2], {'state', 'n'})
if not job then return false end
local answer = {call('HGET', key('job', job.job_id), 'print') or ''}
for choice = 0, job.n - 1 do answer[choice + 2] = call('GET', key('ids', job.job_id, choice)) or '' end
return answer

-- name: keep
-- Shorten the lifetime of ended jobs' records. Called by RedisQueue.keep, for gateways.
-- ARGV: clock, for each job (PER_CALL at most): job_id, new expiry (epoch ms). Returns the jobs that have not ended.
local UNLISTED = 2 -- expired entries removed per kept record, so that a tenant's list shrinks faster than it grows
local open = {}
for i = 2, #ARGV, 2 do
  local job = load(ARGV[i], {'state', 'tenant', 'n'})
  local left_ms = math.max(1, ARGV[i + 1] - NOW)
  if job and job.state ~= 'ended' then
    open[#open + 1] = job.job_id
  elseif job and left_ms < call('PTTL', key('job', job.job_id)) then
    call('PEXPIRE', key('job', job.job_id), left_ms)
    for choice = 0, job.n - 1 do call('PEXPIRE', key('ids', job.job_id, choice), left_ms) end
    list_ended(job, NOW + left_ms)
    local ended = key('ended', job.tenant)
    for _, expired in ipairs(call('ZRANGEBYSCORE', ended, '-inf', NOW, 'LIMIT', 0, UNLISTED)) do
      call('ZREM', ended, expired)
    end
  end
end
return open

-- name: forget
-- Drop the records of ended jobs. Called by RedisQueue.forget, for gateways. ARGV: clock, jobs (PER_CALL at most).
-- Returns the jobs that have not ended; their records stay.
local open = {}
for i = 2, #ARGV do
  local job = load(ARGV[i], {'state', 'tenant', 'n'})
  if job and job.state == 'ended' then drop(job) elseif job then open[#open + 1] = ARGV[i] end
end
return open
