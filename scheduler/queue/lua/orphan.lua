-- Queues without workers. For gateways.

-- name: orphan
-- Handle a queue without workers. Called by RedisQueue.orphan, for gateways, after `reclaim`.
-- ARGV: clock, grace_ms (time without workers). Returns a value of scheduler.queue.types.QueuePresence, and 1 if it has to
--   be called again. Started latency jobs among the first PER_CALL returned ones end as unavailable; gateways move or end
--   the other latency jobs. All others keep waiting.
local LATENCY = 'latency'
local grace_ms = tonumber(ARGV[2])

local function end_started()
  local jobs, ended = call('ZRANGE', key('returned', LATENCY), 0, PER_CALL - 1), 0
  for _, job_id in ipairs(jobs) do
    local job = load(job_id)
    if job and job.generated > 0 then
      finish(job, 'unavailable')
      ended = ended + 1
    end
  end
  return ended > 0 and #jobs == PER_CALL
end

local function is_empty()
  for _, lane in ipairs(LANES) do
    if call('EXISTS', key('waiting', lane.name)) == 1 then return false end
  end
  return call('EXISTS', key('workers'), key('gateways')) == 0
end

-- Delete all keys that do not expire by themselves.
local function remove()
  local gone = {key('followers'), key('floors'), key('expiry'), key('level'), key('lost'), key('pulse'), key('wake'),
    key('doors'), key('queued_tokens')}
  for _, lane in ipairs(LANES) do
    for _, kind in ipairs({'heads', 'waiting', 'returned', 'guaranteed', 'promised', 'asked', 'vouched', 'backlog',
      'counters'}) do
      gone[#gone + 1] = key(kind, lane.name)
    end
  end
  call('DEL', unpack(gone)) -- at most about thirty: the kinds times the lanes
end

if call('EXISTS', key('pulse')) == 0 and is_empty() then return {'removed', 0} end -- a repeated call
if not is_orphan(grace_ms) then return {'served', 0} end
local is_more = LANE[LATENCY] and end_started()
flush_shares()
if not is_empty() then return {'orphaned', is_more and 1 or 0} end
if not is_orphan(KEPT_MS) then return {'empty', 0} end
remove()
return {'removed', 0}

-- name: withdraw
-- Remove a job without tokens from an orphaned queue, so that it can be put into another one; no event is published.
-- Called by RedisQueue.withdraw, for the job's own gateway. ARGV: clock, job_id, grace_ms as for `orphan`.
-- Returns 1 if the queue no longer holds the job, 0 if it stays.
local job = load(ARGV[2])
if not job then return 1 end
if job.state ~= 'queued' or job.generated > 0 or not is_orphan(tonumber(ARGV[3])) then return 0 end
unseat(job)
release_claim(job)
call('ZREM', key('jobs', job.gateway), job.job_id)
local keys = {key('job', job.job_id)}
for choice = 0, job.n - 1 do keys[choice + 2] = key('ids', job.job_id, choice) end
call('DEL', unpack(keys)) -- at most 1 + n
return 1
