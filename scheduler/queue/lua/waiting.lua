-- Requests of one tenant that wait, over all lanes. Called by RedisQueue.waiting. ARGV: clock, tenant.
return waiting_of(ARGV[2])
