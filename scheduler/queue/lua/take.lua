-- Lease the most urgent jobs that a worker can start, PER_CALL at most. Called by RedisQueue.take, for workers, and again
-- while it finds jobs.
-- ARGV: clock, worker, serial, ms per prompt token (0: not known), sequences in a step and KV tokens of the whole worker;
--   for each lane in rank order: sequences and KV tokens that can be started; then for each lane what its own work would
--   yield to others: jobs, exclusive bound of their prompt tokens (0: none), sequences, KV tokens, number and names of
--   the tenants with started work, number and names of the tenants with waiting work.
-- Returns a list of {body, epoch, ms since arrival, guaranteed, 1 if its gateway may have tokens of it};
--   empty until `renew` has reported a loss of its jobs. A call with the serial of the worker's last is a repeat: it
--   returns the leases of that call that the worker still has.
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
      record_affinity(whole.prefix, worker)
      jobs[#jobs + 1] = job.job_id
    else
      unseat(job) -- the store has evicted its record
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
