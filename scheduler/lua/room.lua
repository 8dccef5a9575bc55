-- Prelude of `take`: what the worker can still start (scheduler/lane_order.py states it). After `order`.
local SEQUENCES, KV_TOKENS, MOST = {}, {}, {}
local HAS_SUSPECT = false

-- Read the room of each lane from ARGV[first] on; what the worker ever offered is kept.
local function open_room(worker, first)
  local offered = key('most', worker)
  for level, lane in ipairs(LANES) do
    local sequences, kv_tokens = tonumber(ARGV[first + 2 * level - 2]), tonumber(ARGV[first + 2 * level - 1])
    local before = call('HMGET', offered, lane.name, lane.name .. ':kv')
    MOST[level] = {math.max(sequences, tonumber(before[1] or 0)), math.max(kv_tokens, tonumber(before[2] or 0))}
    call('HSET', offered, lane.name, MOST[level][1], lane.name .. ':kv', MOST[level][2])
    SEQUENCES[level], KV_TOKENS[level] = sequences, kv_tokens
  end
  HAS_SUSPECT = call('ZCOUNT', key('held', worker), SUSPECT_LOSSES, '+inf') > 0
end

-- Give room to the job: true where it fits. From when a job is due that does not fit but could once, its lane gives
-- nothing more, so that room gathers for it.
local function claim(job)
  local level, kv_tokens = LANE[job.lane].level, job.prompt + job.generated + job.n
  local is_suspect = job.losses >= SUSPECT_LOSSES
  if is_suspect and HAS_SUSPECT then return false end
  if job.n <= SEQUENCES[level] and kv_tokens <= KV_TOKENS[level] then
    for below = level, #LANES do
      SEQUENCES[below], KV_TOKENS[below] = SEQUENCES[below] - job.n, KV_TOKENS[below] - kv_tokens
    end
    HAS_SUSPECT = HAS_SUSPECT or is_suspect
    return true
  end
  if job.due <= NOW and job.n <= MOST[level][1] and kv_tokens <= MOST[level][2] then
    for closed = job.rank[2], level do SEQUENCES[closed] = 0 end
  end
  return false
end
