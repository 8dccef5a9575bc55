-- What becomes of a queue that no worker serves. For gateways.

-- name: orphan
-- What becomes of a queue that no worker serves. Called by RedisQueue.orphan, for gateways, after `reclaim`.
-- ARGV: clock, grace_ms (how long nobody may have served it). Returns a value of scheduler.queue.types.QueuePresence.
-- Of an orphan the started latency jobs end as unavailable, a part per call; all else waits as it did.
local LATENCY = 'latency'
local grace_ms = tonumber(ARGV[2])

local function end_started()
  local ended = 0
  for _, job_id in ipairs(call('ZRANGE', key('returned', LATENCY), 0, -1)) do
    local job = ended < SWEEP and load(job_id)
    if job and job.generated > 0 then
      finish(job, 'unavailable')
      ended = ended + 1
    end
  end
end

local function is_empty()
  for _, lane in ipairs(LANES) do
    if call('EXISTS', key('waiting', lane.name)) == 1 then return false end
  end
  return call('EXISTS', key('workers'), key('gateways')) == 0
end

-- All that has no time to live of its own.
local function remove()
  local gone = {key('followers'), key('owed'), key('expiry'), key('level'), key('lost'), key('pulse'), key('wake'),
    key('doors'), key('queued_tokens')}
  for _, lane in ipairs(LANES) do
    for _, kind in ipairs({'heads', 'waiting', 'returned', 'guaranteed', 'promised', 'asked', 'vouched', 'backlog',
      'counters'}) do
      gone[#gone + 1] = key(kind, lane.name)
    end
  end
  call('DEL', unpack(gone))
end

if call('EXISTS', key('pulse')) == 0 and is_empty() then return 'removed' end -- by this call's lost first run
if not is_orphan(grace_ms) then return 'served' end
if LANE[LATENCY] then end_started() end
flush_shares()
if not is_empty() then return 'orphaned' end
if not is_orphan(KEPT_MS) then return 'empty' end
remove()
return 'removed'

-- name: withdraw
-- Take a job that has no token yet out of a queue that nobody serves, to be put elsewhere: nothing of it stays, nobody
-- is told. Called by RedisQueue.withdraw, for the job's own gateway. ARGV: clock, job_id, grace_ms as of `orphan`.
-- Returns 1 where nothing of it is here (any more), 0 where it stays.
local job = load(ARGV[2])
if not job then return 1 end
if job.state ~= 'queued' or job.generated > 0 or not is_orphan(tonumber(ARGV[3])) then return 0 end
unseat(job)
release_claim(job)
call('ZREM', key('jobs', job.gateway), job.job_id)
local keys = {key('job', job.job_id)}
for choice = 0, job.n - 1 do keys[choice + 2] = key('ids', job.job_id, choice) end
call('DEL', unpack(keys))
return 1
