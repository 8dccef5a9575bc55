-- Keep the records of jobs that have ended until a time, if not less long. Called by RedisQueue.keep, for gateways.
-- ARGV: clock, for each: job_id, until when (epoch ms). Returns nothing.
for i = 2, #ARGV, 2 do
  local job = load(ARGV[i], {'state', 'n'})
  local left_ms = math.max(1, ARGV[i + 1] - NOW)
  if job and job.state == 'ended' and left_ms < call('PTTL', key('job', job.job_id)) then
    call('PEXPIRE', key('job', job.job_id), left_ms)
    for choice = 0, job.n - 1 do call('PEXPIRE', key('ids', job.job_id, choice), left_ms) end
  end
end
