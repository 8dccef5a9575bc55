-- A gateway's heartbeat: without it for GATEWAY_LEASES leases, its jobs are cancelled. Called by RedisQueue.
-- ARGV: clock, gateway, id up to which it has read its events ('' = unknown). Returns nothing.
local gateway, read_id = ARGV[2], ARGV[3]
call('ZADD', key('gateways'), NOW + GATEWAY_LEASES * LEASE_MS, gateway)
if read_id ~= '' then call('XTRIM', key('events', gateway), 'MINID', read_id) end
call('PEXPIRE', key('events', gateway), RECORD_TTL_MS)
