-- Appends an entry to the audit log unless it is there. Called by Audit and AuditOutbox, possibly concurrently.
-- KEYS[1]  the audit log
-- ARGV     1 entries to keep, 2 id of the entry, 3… its fields and their values
-- Returns  nothing
local written = 'fl:audited:{' .. KEYS[1] .. '}' -- in the same slot
if redis.call('ZSCORE', written, ARGV[2]) then return end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, 3))
redis.call('ZADD', written, now_ms(), ARGV[2])
redis.call('ZREMRANGEBYRANK', written, 0, -1 - ARGV[1])
