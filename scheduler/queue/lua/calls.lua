-- Workers that take no jobs, or do not start those that they were given.

-- name: retire
-- Withdraw the room of a worker that takes no more jobs. Called by RedisQueue.retire, for workers. ARGV: clock, worker.
-- Returns nothing.
withdraw_room(ARGV[2])

-- name: rouse
-- Find other workers for jobs that have not been started. Called by RedisQueue.rouse, for their gateway, which has had
-- no stream of them. ARGV: clock, jobs (JOBS_PER_CALL at most). Returns those that it should ask about again.
local function is_recent(since, patience_ms)
  return since <= NOW and NOW - since < patience_ms -- else the clock may have been set back
end

-- Whether a worker may be about to start a job.
local function may_start(job)
  local known = call('HMGET', key('job', job.job_id), 'called', 'given', 'roused')
  if job.state == 'leased' then
    local entry = known[2] or '' -- absent in records of older releases
    if entry == '' then return false end
    if is_recent(job.taken, HANDED_PATIENCE_MS) then return true end
    withdraw_room(job.worker)
    call('XDEL', key('leases', job.worker), entry)
    give_back(job)
  elseif is_recent(math.max(job.queued, tonumber(known[3] or 0)), CALL_PATIENCE_MS / 2) then
    return known[1] ~= '' -- a repeat, or the call is too recent
  end
  return job.state == 'queued' and call_again(job)
end

local watched = {}
for i = 2, #ARGV do
  local job = load(ARGV[i])
  if job and job.state ~= 'ended' and may_start(job) then watched[#watched + 1] = job.job_id end
end
flush_shares()
return watched
