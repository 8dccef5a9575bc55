-- Queues without workers. For gateways.

-- name: orphan
-- Handle a queue without workers. Called by RedisQueue.orphan, for gateways, after `reclaim`.
-- ARGV: clock, grace_ms (time without workers). Returns a value of scheduler.queue.types.QueuePresence. Gateways move or
--   end their latency jobs; all others keep waiting.
local grace_ms = tonumber(ARGV[2])

local function is_empty()
  for _, lane in ipairs(LANES) do
    if call('EXISTS', key('waiting', lane.name)) == 1 then return false end
  end
  return call('EXISTS', key('workers'), key('gateways')) == 0
end

-- Delete all keys that do not expire by themselves.
local function remove()
  local gone = {key('followers'), key('floors'), key('expiry'), key('level'), key('lost'), key('pulse'),
    key('doors'), key('queued_tokens'), key('rivals')}
  for _, lane in ipairs(LANES) do
    for _, kind in ipairs({'heads', 'waiting', 'returned', 'guaranteed', 'promised', 'asked', 'vouched', 'backlog',
      'counters'}) do
      gone[#gone + 1] = key(kind, lane.name)
    end
  end
  call('DEL', unpack(gone)) -- at most about thirty: the kinds times the lanes
end

if call('EXISTS', key('pulse')) == 0 and is_empty() then return 'removed' end -- a repeated call
if not is_orphan(grace_ms) then return 'served' end
if not is_empty() then return 'orphaned' end
if not is_orphan(KEPT_MS) then return 'empty' end
remove()
return 'removed'

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
drop(job)
return 1
