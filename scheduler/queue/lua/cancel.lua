-- End a waiting job, tell a leased one's holder to stop it. Called by RedisQueue.cancel, for gateways. Idempotent.
-- ARGV: clock, job_id. Returns the record as `record.lua` does; false where it is unknown.
local job = load(ARGV[2])
if not job then return false end
stop(job)
flush_shares()
return describe(job)
