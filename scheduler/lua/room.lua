-- Prelude of `take`: what the worker can still start (scheduler/lane_order.py states it). After `moves`.
local SEQUENCES, KV_TOKENS, PREFILL_MS = {}, {}, tonumber(ARGV[3])
local MAX_SEQUENCES, POOL_TOKENS, HAS_SUSPECT = 0, 0, false
local YIELDING = {} -- what each lane's own work there would yield, to tenants that were served less

-- The tenants named in ARGV from `at` on, behind their number; and where the next value stands.
local function read_tenants(at)
  local tenants, last = {}, at + tonumber(ARGV[at])
  for i = at + 1, last do tenants[#tenants + 1] = ARGV[i] end
  return tenants, last + 1
end

local function set_of(tenants)
  local set = {}
  for _, tenant in ipairs(tenants) do set[tenant] = true end
  return set
end

-- Read of a lane from ARGV[at] on: jobs, sequences, KV tokens, tenants that have begun there, tenants that wait there.
local function open_yielding(lane, at)
  local own = {jobs = tonumber(ARGV[at]), sequences = tonumber(ARGV[at + 1]), kv_tokens = tonumber(ARGV[at + 2])}
  own.tenants, at = read_tenants(at + 3)
  own.begun = set_of(own.tenants)
  local waiting
  waiting, at = read_tenants(at)
  own.waiting = set_of(waiting)
  YIELDING[lane.level] = own
  return at
end

-- Read from ARGV[first] on what the whole worker is, then the room of each lane, then what each would yield.
local function open_room(worker, first)
  MAX_SEQUENCES, POOL_TOKENS = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
  for level = 1, #LANES do
    SEQUENCES[level], KV_TOKENS[level] = tonumber(ARGV[first + 2 * level]), tonumber(ARGV[first + 2 * level + 1])
  end
  local at = first + 2 * #LANES + 2
  for _, lane in ipairs(LANES) do at = open_yielding(lane, at) end
  HAS_SUSPECT = call('ZCOUNT', key('held', worker), SUSPECT_LOSSES, '+inf') > 0
end

-- Θ of a lane for this worker.
local function window_of(lane)
  return window_at(lane, PREFILL_MS)
end

-- Anything could be started in this lane without its own work yielding.
local function is_open(lane)
  return SEQUENCES[lane.level] > 0 and KV_TOKENS[lane.level] > 0
end

-- A job could ever end here: all its choices in one step, and each alone as long as it can grow. Not where it may have
-- killed its workers, and one such job is here already.
local function could_hold(job)
  return job.n <= MAX_SEQUENCES and job.whole <= POOL_TOKENS and not (HAS_SUSPECT and job.losses >= SUSPECT_LOSSES)
end

-- KV tokens that its next step holds; one that has grown beyond the pool, its choices in turns, needs all of that.
local function tokens_of(job)
  return math.min(job.kv_tokens, POOL_TOKENS)
end

-- Room for all its choices, now and until they end.
local function fits(job)
  return job.n <= SEQUENCES[job.level] and tokens_of(job) <= KV_TOKENS[job.level]
end

-- Due: room is to gather for it.
local function gathers(job)
  return job.due <= NOW and SEQUENCES[job.level] > 0
end

-- Starts with no more than its lane's share floor has of the worker, nor several choices.
local function is_within_floor(job)
  return job.n == 1 and tokens_of(job) <= LANE[job.lane].share_floor * POOL_TOKENS
end

-- Somebody could be owed something.
local function yields(lane)
  return #YIELDING[lane.level].tenants > 0
end

-- Tenants' counters, or the level where that is higher.
local function standings(lane, tenants)
  local level, counters = tonumber(call('HGET', key('level'), lane.name) or 0), {}
  for i, counter in ipairs(call('ZMSCORE', key('counters', lane.name), unpack(tenants))) do
    counters[i] = math.max(level, tonumber(counter or 0))
  end
  return counters
end

-- The largest counter of those who have begun there, as it is when first asked for; and whether one of them that is
-- behind it by more than the window waits there already.
local function most_served(own, lane)
  if not own.most then
    local counters = standings(lane, own.tenants)
    own.most = math.max(unpack(counters))
    for i, tenant in ipairs(own.tenants) do
      own.one_waits = own.one_waits or (own.waiting[tenant] and own.most - counters[i] > window_of(lane))
    end
  end
  return own.most
end

-- This job is of a tenant that is owed, and what would be yielded suffices for it (Owed in scheduler/lane_order.py).
local function is_owed(job, lane)
  local own, tenant = YIELDING[lane.level], job.tenant
  if job.n > own.sequences or tokens_of(job) > own.kv_tokens then return false end
  if job.guaranteed == 1 then return true end
  if own.waiting[tenant] then return false end
  local lead = most_served(own, lane) - standings(lane, {tenant})[1]
  if own.begun[tenant] then return not own.one_waits and lead > window_of(lane) end
  return own.jobs > 0 and lead >= -window_of(lane)
end

-- A job is taken, and waits there for others to yield.
local function give_owed(job)
  local own, tenant = YIELDING[job.level], job.tenant
  if own.begun[tenant] then
    own.one_waits = true
  elseif job.guaranteed == 0 then
    own.jobs = own.jobs - 1
  end
  own.waiting[tenant] = true
  own.sequences, own.kv_tokens = own.sequences - job.n, own.kv_tokens - tokens_of(job)
end

-- Give the room to this job: gone for its lane and all below.
local function occupy(job)
  if job.is_owed then give_owed(job) end
  for below = job.level, #LANES do
    SEQUENCES[below], KV_TOKENS[below] = SEQUENCES[below] - job.n, KV_TOKENS[below] - tokens_of(job)
  end
  HAS_SUSPECT = HAS_SUSPECT or job.losses >= SUSPECT_LOSSES
end

-- Give nothing more to these lanes, so that room gathers.
local function close(first, last)
  for level = first, last do SEQUENCES[level] = 0 end
end
