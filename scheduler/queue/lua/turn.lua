-- Record the progress of a worker's jobs, and lease it the most urgent jobs that it can start; JOBS_PER_CALL jobs at most,
-- expired ones included. Called by RedisQueue.turn, for workers.
-- ARGV: clock, worker, serial, id of the first lease in its stream that it has not read ('': unknown), number of jobs that
--   it was called for, those jobs, number of values of the report, the report as `record` reads it, then as `open_room`
--   reads them: ms per prompt token, sequences in a step and KV tokens of the whole worker; for each lane in rank order:
--   sequences and KV tokens that can be started; then for each lane what its own work would yield to others: jobs,
--   exclusive bound of their prompt tokens (0: none), sequences, KV tokens, number and names of the tenants with started
--   work, number and names of the tenants with waiting work; then number and names of the gateways that it cannot reach. At
--   one of several shards then for each lane what `receive_floors` reads, and for each lane the sequences that could be
--   moved here from the other shards.
-- Returns {refused jobs of the report, list of {body, epoch, ms since arrival, guaranteed, 1 if its gateway may have
--   tokens of it}, 1 if another call may lease more, 1 if jobs wait}; no leases until `renew` has reported a loss of its
--   jobs. A call with the serial of the worker's last that recorded or leased any is a repeat: it records nothing, and
--   returns the leases of that call that the worker still has. One of several shards also returns {1 if the worker has
--   leases to read first, 1 if a job would fit into more room, its heads as `describe_heads` does}.
local worker, serial, unread, called = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local first = 6 + called
local values, leases, TAKING = tonumber(ARGV[first]), {}, {'body', unpack(FIELDS)} -- at most the FIELDS
if unread ~= '' then call('XTRIM', key('leases', worker), 'MINID', unread) end

local last = call('GET', key('turned', worker))
last = last and cmsgpack.unpack(last)
if last and last.serial == serial then
  for _, job_id in ipairs(last.jobs) do
    local job = load(job_id, TAKING)
    if job and job.state == 'leased' and job.worker == worker then leases[#leases + 1] = describe_lease(job) end
  end
  return {last.refused, leases, last.is_cut, last.jobs_wait, last.shard}
end

local function has_waiting()
  for _, lane in ipairs(LANES) do
    if is_backlogged(lane.name) then return true end
  end
  return false
end

-- Lease at most `most` jobs, and return them.
local function take(most)
  local jobs = {}
  call('ZADD', key('workers'), 'NX', NOW + LEASE_MS, worker)
  open_room(worker, first + values + 1)
  local job = most > 0 and has_waiting() and pick()
  while job do
    local whole = load(job.job_id, TAKING)
    local waits = unseat(whole or job) -- without a record if the store has evicted it
    if whole then
      occupy(job)
      leases[#leases + 1] = hold(whole, worker, provisional_cost(job))
      record_affinity(whole.prefix, worker)
      jobs[#jobs + 1] = job.job_id
    end
    move_back(job.lane, job.tenant, waits and (whole and whole.counter or job.counter))
    job = #jobs < most and pick()
  end
  return jobs
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

local refused, recorded = record(worker, first + 1, first + values)
charge_spent()
local most, jobs, is_cut, shard = math.max(0, JOBS_PER_CALL - recorded - expire(JOBS_PER_CALL)), {}, 0, nil
local is_unread = IS_SHARD and call('XLEN', key('leases', worker)) > 0
if IS_SHARD then receive_floors(#ARGV - 3 * #LANES + 1) end
if call('ZSCORE', key('lost'), worker) then
  is_unread = false
elseif is_unread then -- it does not know yet what is left of the room that it offers
  withdraw_room(worker)
  pass_on()
else
  jobs = take(most)
  pass_on()
  register_room(worker, has_waiting())
  is_cut = #jobs >= most and has_waiting() and 1 or 0
end
local jobs_wait = has_waiting() and 1 or 0
if IS_SHARD then shard = {is_unread and 1 or 0, LACKS_ROOM and 1 or 0, describe_heads()} end
if recorded + #jobs > 0 then
  local turned = {serial = serial, refused = refused, jobs = jobs, is_cut = is_cut, jobs_wait = jobs_wait, shard = shard}
  call('SET', key('turned', worker), cmsgpack.pack(turned), 'PX', RECORD_TTL_MS)
end
flush_shares()
return {refused, leases, is_cut, jobs_wait, shard}
