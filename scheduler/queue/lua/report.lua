-- Record the progress of a worker's jobs. Called by RedisQueue.report, once per JOBS_PER_CALL jobs.
-- ARGV: clock, worker, serial, part of the report from 0, then the jobs as `record` reads them. Returns the refused jobs.
--   A part with the serial of the worker's last report of it is a repeat: it changes nothing and returns the same.
local worker, serial, part, reported = ARGV[2], ARGV[3], ARGV[4], key('reported', ARGV[2])
local known = call('HGET', reported, part)
known = known and cmsgpack.unpack(known)
if known and known.serial == serial then return known.refused end
local refused = record(worker, 5, #ARGV)
call('HSET', reported, part, cmsgpack.pack({serial = serial, refused = refused}))
call('PEXPIRE', reported, RECORD_TTL_MS)
flush_shares()
return refused
