-- Lease to a worker the jobs that it can start, most urgent first. Called by RedisQueue.take, for workers.
-- ARGV: clock, worker, ms that it takes to prefill a token (0: not known), sequences in a step and KV tokens of the
--   whole worker, then for each lane in order of rank: sequences, KV tokens that can be started; then for each lane what
--   its own work would yield to others: jobs, sequences, KV tokens, the number of tenants that have begun there and
--   their names, the number of those that wait there and their names.
-- Returns a list of {body, epoch, ms since arrival, granted_until, guaranteed, packed ids of choice 0, of choice 1, …}; empty
--   while the worker has not heard (`renew`) that it lost its jobs.
local worker, taken, TAKING = ARGV[2], {}, {'body', unpack(FIELDS)}

local function take()
  call('ZADD', key('workers'), 'NX', NOW + LEASE_MS, worker)
  open_room(worker, 4)
  local job = pick()
  while job do
    local whole = load(job.job_id, TAKING)
    if whole then
      occupy(job)
      taken[#taken + 1] = lease(whole, worker, provisional_cost(job))
      file_home(whole.prefix, worker)
    else
      unseat(job) -- the store has dropped its record
    end
    job = pick()
  end
end

expire()
if not call('ZSCORE', key('lost'), worker) then take() end
flush_shares()
return taken
