-- Drop the records of jobs that have ended; others stay. Called by RedisQueue.forget, for gateways.
-- ARGV: clock, jobs. Returns nothing.
for i = 2, #ARGV do
  local job = load(ARGV[i], {'state', 'n'})
  if job and job.state == 'ended' then
    local keys = {key('job', job.job_id)}
    for choice = 0, job.n - 1 do keys[choice + 2] = key('ids', job.job_id, choice) end
    call('DEL', unpack(keys))
  end
end
