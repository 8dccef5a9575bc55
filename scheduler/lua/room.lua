-- Prelude of `take`: what the worker can still start (scheduler/lane_order.py states it). After `moves`.
local SEQUENCES, KV_TOKENS = {}, {}
local MAX_SEQUENCES, POOL_TOKENS, HAS_SUSPECT = 0, 0, false

-- Read from ARGV[first] on what the whole worker is, and then the room of each lane.
local function open_room(worker, first)
  MAX_SEQUENCES, POOL_TOKENS = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
  for level = 1, #LANES do
    SEQUENCES[level], KV_TOKENS[level] = tonumber(ARGV[first + 2 * level]), tonumber(ARGV[first + 2 * level + 1])
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

-- A job could ever end here: all its choices in one step, and each alone as long as it can grow.
local function could_fit(job)
  return job.n <= MAX_SEQUENCES and job.whole <= POOL_TOKENS
end

-- KV tokens that its next step holds; one that has grown beyond the pool, its choices in turns, needs all of that.
local function tokens_of(job)
  return math.min(job.kv_tokens, POOL_TOKENS)
end

-- Room for all its choices, now and until they end.
local function fits(job)
  return job.n <= SEQUENCES[job.level] and tokens_of(job) <= KV_TOKENS[job.level] and could_fit(job)
    and not is_barred(job)
end

-- Due, and fits this worker once enough of what runs there has ended.
local function gathers(job)
  return job.due <= NOW and SEQUENCES[job.level] > 0 and could_fit(job) and not is_barred(job)
end

-- Give the room to this job: gone for its lane and all below.
local function occupy(job)
  for below = job.level, #LANES do
    SEQUENCES[below], KV_TOKENS[below] = SEQUENCES[below] - job.n, KV_TOKENS[below] - tokens_of(job)
  end
  HAS_SUSPECT = HAS_SUSPECT or job.losses >= SUSPECT_LOSSES
end

-- Give nothing more to these lanes, so that room gathers.
local function close(first, last)
  for level = first, last do SEQUENCES[level] = 0 end
end
