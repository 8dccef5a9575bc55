-- What a job has published. Called by RedisQueue.generated, for gateways. ARGV: clock, flight.
-- Returns the packed ids of choice 0, of choice 1, …; false where it is unknown.
local job = load(ARGV[2], {'state', 'n'})
if not job then return false end
local answer = {}
for choice = 0, job.n - 1 do answer[choice + 1] = call('GET', key('ids', job.flight, choice)) or '' end
return answer
