-- Record the progress of a worker's jobs, and lease it the most urgent jobs that it can start, PER_CALL at most. Called by
-- RedisQueue.turn, for workers.
-- ARGV: clock, worker, serial, id of the first lease in its stream that it has not read ('': unknown), number of jobs that
--   it was called for, those jobs (PER_CALL at most), number of values of the report, the report as `record` reads it
--   (part 0), then as `open_room` reads them: ms per prompt token, sequences in a step and KV tokens of the whole worker;
--   for each lane in rank order: sequences and KV tokens that can be started; then for each lane what its own work would
--   yield to others: jobs, exclusive bound of their prompt tokens (0: none), sequences, KV tokens, number and names of
--   the tenants with started work, number and names of the tenants with waiting work.
-- Returns {refused jobs of the report, list of {body, epoch, ms since arrival, guaranteed, 1 if its gateway may have
--   tokens of it}}; no leases until `renew` has reported a loss of its jobs. A call with the serial of the worker's last
--   that leased any is a repeat: it returns the leases of that call that the worker still has.
local worker, serial, unread, called = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local first = 6 + called
local values, leases, TAKING = tonumber(ARGV[first]), {}, {'body', unpack(FIELDS)} -- at most the FIELDS
if unread ~= '' then call('XTRIM', key('leases', worker), 'MINID', unread) end

local function repeated(jobs)
  for _, job_id in ipairs(jobs) do
    local job = load(job_id, TAKING)
    if job and job.state == 'leased' and job.worker == worker then leases[#leases + 1] = describe_lease(job) end
  end
end

local function has_waiting()
  for _, lane in ipairs(LANES) do
    if is_backlogged(lane.name) then return true end
  end
  return false
end

local function take()
  local jobs = {}
  call('ZADD', key('workers'), 'NX', NOW + LEASE_MS, worker)
  open_room(worker, first + values + 1)
  local job = has_waiting() and pick()
  while job do
    local whole = load(job.job_id, TAKING)
    unseat(whole or job) -- without a record if the store has evicted it
    if whole then
      occupy(job)
      leases[#leases + 1] = hold(whole, worker, provisional_cost(job))
      record_affinity(whole.prefix, worker)
      jobs[#jobs + 1] = job.job_id
    end
    job = #leases < PER_CALL and pick()
  end
  if #jobs > 0 then
    call('SET', key('took', worker), cmsgpack.pack({serial = serial, jobs = jobs}), 'PX', LEASE_MS)
  end
end

-- Call others for the jobs that this worker was called for and did not take.
local function pass_on()
  if called == 0 then return end
  withdraw_room(worker) -- so that it is not called itself
  for i = 6, 5 + called do
    local job = load(ARGV[i])
    if job and job.state == 'queued' then call_again(job) end
  end
end

local last = call('GET', key('took', worker))
last = last and cmsgpack.unpack(last)
local refused = values > 0 and record(worker, serial, 0, first + 1, first + values) or {}
expire()
if last and last.serial == serial then
  repeated(last.jobs)
elseif not call('ZSCORE', key('lost'), worker) then
  take()
  pass_on()
  register_room(worker)
end
flush_shares()
return {refused, leases}
