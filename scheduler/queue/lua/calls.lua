-- Calls that workers do not answer.

-- name: retire
-- Stop calling a worker that takes no more jobs. Called by RedisQueue.retire, for workers. ARGV: clock, worker.
-- Returns nothing.
withdraw_room(ARGV[2])
settle_calls(ARGV[2], true)

-- name: rouse
-- Wake every worker if a called one has not taken its job in time. Called by RedisQueue.rouse, for gateways.
-- ARGV: clock. Returns ms until the next call is late, or 0 if none is open.
return rouse_late()
