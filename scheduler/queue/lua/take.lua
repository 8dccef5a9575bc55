-- Lease to a worker the jobs that it can start, most urgent first, PER_CALL at most. Called by RedisQueue.take, for
-- workers, again while it finds jobs.
-- ARGV: clock, worker, serial, ms that it takes to prefill a token (0: not known), sequences in a step and KV tokens of the
--   whole worker, then for each lane in order of rank: sequences, KV tokens that can be started; then for each lane what
--   its own work would yield to others: jobs, the tokens of which their prompts must have fewer (0: any length),
--   sequences, KV tokens, the number of tenants that have begun there and their names, the number of those that wait
--   there and their names.
-- Returns a list of {body, epoch, ms since arrival, granted_until, guaranteed, packed ids of choice 0, of choice 1, …}; empty
--   while the worker has not heard (`renew`) that it lost its jobs. A call with the serial of the worker's last is a
--   repeat: it returns the leases of that call which the worker still has.
local worker, serial, taken, TAKING = ARGV[2], ARGV[3], {}, {'body', unpack(FIELDS)} -- at most the FIELDS
local last = call('GET', key('took', worker))
last = last and cmsgpack.unpack(last)
if last and last.serial == serial then
  for _, job_id in ipairs(last.jobs) do
    local job = load(job_id, TAKING)
    if job and job.state == 'leased' and job.worker == worker then taken[#taken + 1] = describe_lease(job) end
  end
  return taken
end

local function take()
  local jobs = {}
  call('ZADD', key('workers'), 'NX', NOW + LEASE_MS, worker)
  open_room(worker, 5)
  local job = pick()
  while job and #taken < PER_CALL do
    local whole = load(job.job_id, TAKING)
    if whole then
      occupy(job)
      taken[#taken + 1] = lease(whole, worker, provisional_cost(job))
      file_home(whole.prefix, worker)
      jobs[#jobs + 1] = job.job_id
    else
      unseat(job) -- the store has dropped its record
    end
    job = pick()
  end
  if #jobs > 0 then
    withdraw_room(worker)
    call('SET', key('took', worker), cmsgpack.pack({serial = serial, jobs = jobs}), 'PX', LEASE_MS)
  else
    file_room(worker, ROOM)
  end
end

expire()
if not call('ZSCORE', key('lost'), worker) then take() end
settle_calls(worker)
flush_shares()
return taken
