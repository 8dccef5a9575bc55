-- End a waiting job, or ask a leased one's holder to stop it. Called by RedisQueue.cancel, for gateways. Idempotent.
-- ARGV: clock, job_id. Returns the record as `record` does; false if it is unknown.
local job = load(ARGV[2])
if not job then return false end
stop(job)
flush_shares()
return describe(job)
