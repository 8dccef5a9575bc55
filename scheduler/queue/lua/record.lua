-- What is known of a job. Called by RedisQueue.record. ARGV: clock, job_id.
-- Returns {state, outcome, prompt tokens, worker, tenant, lane, gateway, cancelled, epoch, tokens of choice 0, …};
--   false where it was never put, or is forgotten.
local job = load(ARGV[2])
return job and describe(job) or false
