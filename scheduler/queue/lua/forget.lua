-- Drop the records of jobs that have ended; others stay. Called by RedisQueue.forget, for gateways.
-- ARGV: clock, flights. Returns nothing.
for i = 2, #ARGV do
  local job = load(ARGV[i], {'state', 'n'})
  if job and job.state == 'ended' then
    local keys = {key('job', job.flight)}
    for choice = 0, job.n - 1 do keys[choice + 2] = key('ids', job.flight, choice) end
    call('DEL', unpack(keys))
  end
end
