-- Record the progress of a worker's jobs. Called by RedisQueue.report, once per PER_CALL jobs.
-- ARGV: clock, worker, serial, part of the report from 0, then the jobs as `record` reads them. Returns the refused jobs.
local refused = record(ARGV[2], ARGV[3], ARGV[4], 5, #ARGV)
flush_shares()
return refused
