-- Hand jobs back, on drain: to the head of their lane, not counted as a loss. Called by RedisQueue.release.
-- ARGV: clock, worker, jobs. What the worker does not hold stays as it is. Returns nothing.
local worker, returned = ARGV[2], false
for i = 3, #ARGV do
  local job = load(ARGV[i])
  if job and job.state == 'leased' and job.worker == worker then
    give_back(job)
    returned = true
  end
end
if returned then wake() end
flush_shares()
