-- Prelude of `take`: what the worker can still start (scheduler/lane_order.py states it). After `moves`.
local SEQUENCES, KV_TOKENS, MOST = {}, {}, {}
local HAS_SUSPECT = false

-- Read the room of each lane from ARGV[first] on; what the worker ever offered is kept.
local function open_room(worker, first)
  local offered, fields, kept = key('most', worker), {}, {}
  for level, lane in ipairs(LANES) do fields[2 * level - 1], fields[2 * level] = lane.name, lane.name .. ':kv' end
  local before = call('HMGET', offered, unpack(fields))
  for i, field in ipairs(fields) do
    MOST[i] = math.max(tonumber(ARGV[first + i - 1]), tonumber(before[i] or 0))
    kept[2 * i - 1], kept[2 * i] = field, MOST[i]
  end
  call('HSET', offered, unpack(kept))
  for level = 1, #LANES do
    SEQUENCES[level], KV_TOKENS[level] = tonumber(ARGV[first + 2 * level - 2]), tonumber(ARGV[first + 2 * level - 1])
  end
  HAS_SUSPECT = call('ZCOUNT', key('held', worker), SUSPECT_LOSSES, '+inf') > 0
end

-- Anything could be started in this lane.
local function is_open(lane)
  return SEQUENCES[lane.level] > 0 and KV_TOKENS[lane.level] > 0
end

-- May have killed its workers, and one such job is here already.
local function is_barred(job)
  return HAS_SUSPECT and job.losses >= SUSPECT_LOSSES
end

-- Room for all its choices.
local function fits(job)
  return job.n <= SEQUENCES[job.level] and job.kv_tokens <= KV_TOKENS[job.level] and not is_barred(job)
end

-- Due, and fits this worker once enough of what runs there has ended.
local function gathers(job)
  return job.due <= NOW and SEQUENCES[job.level] > 0 and job.n <= MOST[2 * job.level - 1]
    and job.kv_tokens <= MOST[2 * job.level] and not is_barred(job)
end

-- Give the room to this job: gone for its lane and all below.
local function occupy(job)
  for below = job.level, #LANES do
    SEQUENCES[below], KV_TOKENS[below] = SEQUENCES[below] - job.n, KV_TOKENS[below] - job.kv_tokens
  end
  HAS_SUSPECT = HAS_SUSPECT or job.losses >= SUSPECT_LOSSES
end

-- Give nothing more to these lanes, so that room gathers.
local function close(first, last)
  for level = first, last do SEQUENCES[level] = 0 end
end
