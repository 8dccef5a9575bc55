-- Waiting jobs and their positions. For gateways; read-only.

-- name: position
-- 1 + the tenant's own jobs ahead of a waiting one. Called by RedisQueue.position. ARGV: clock, job_id.
-- Returns false if it is not queued.
local job = load(ARGV[2])
if not job or job.state ~= 'queued' then return false end
return call('ZRANK', key('queue', job.lane, job.tenant), job.job_id) + 1

-- name: waiting
-- A tenant's waiting requests, over all lanes. Called by RedisQueue.waiting. ARGV: clock, tenant.
return waiting_of(ARGV[2])

-- name: depths
-- The load of each lane. Called by RedisQueue.depths. ARGV: clock.
-- Returns for each lane, in rank order: waiting jobs, ms that the oldest has waited, their prompt tokens.
local answer, tokens = {}, key('queued_tokens')
for _, lane in ipairs(LANES) do
  local oldest = call('ZRANGE', key('waiting', lane.name), 0, 0, 'WITHSCORES')[2]
  answer[#answer + 1] = call('ZCARD', key('waiting', lane.name))
  answer[#answer + 1] = oldest and NOW - tonumber(oldest) or 0
  answer[#answer + 1] = oldest and tonumber(call('HGET', tokens, lane.name) or 0) or 0
end
return answer
