-- Drop the records of jobs that have ended; others stay. Called by RedisQueue.forget, for gateways.
-- ARGV: clock, flights. Returns nothing.
for i = 2, #ARGV do
  local job = load(ARGV[i])
  if job and job.state == 'ended' then
    call('DEL', key('job', job.flight))
    for choice = 0, job.n - 1 do call('DEL', key('ids', job.flight, choice)) end
  end
end
