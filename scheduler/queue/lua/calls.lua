-- Calls that workers do not answer.

-- name: retire
-- A worker takes no more jobs. Called by RedisQueue.retire, for workers. ARGV: clock, worker. Returns nothing.
withdraw_room(ARGV[2])
settle_calls(ARGV[2], true)

-- name: rouse
-- Wake every worker where one that was called for a job has not come for it. Called by RedisQueue.rouse, for gateways.
-- ARGV: clock. Returns ms until the next call is late; 0 where every call was answered.
return rouse_late()
