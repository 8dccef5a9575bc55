-- A gateway's heartbeat: without it for GATEWAY_LEASES leases, its jobs are cancelled. Called by RedisQueue.
-- ARGV: clock, gateway. Returns nothing.
call('ZADD', key('gateways'), NOW + GATEWAY_LEASES * LEASE_MS, ARGV[2])
call('PEXPIRE', key('events', ARGV[2]), RECORD_TTL_MS)
