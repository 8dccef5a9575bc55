-- Shared after `jobs`, for `turn`: the worker's remaining room, and the order of candidates.
-- The rules are in scheduler/queue/take_order.py.
local SEQUENCES, KV_TOKENS, PREFILL_MS
local MAX_SEQUENCES, POOL_TOKENS
local WORKER, HAS_SUSPECT -- the latter nil until it matters
local YIELDING -- by lane, what its own work there would yield to less served tenants
local UNREACHED -- the set of gateways that it cannot reach, nil if there are none
local LACKS_ROOM -- whether a job was compared that could run here and does not fit
local CANDIDATES -- waiting jobs that were read, by job_id or packed head
local LEAST_SERVED -- by lane, the tenants that `least_served` returns
local IS_EMPTY -- by name, lists that were read and had no job; none is added while jobs are leased

AT_BEGIN[#AT_BEGIN + 1] = function()
  SEQUENCES, KV_TOKENS, YIELDING, CANDIDATES, LEAST_SERVED, IS_EMPTY = {}, {}, {}, {}, {}, {}
  HAS_SUSPECT, UNREACHED = nil, nil
  LACKS_ROOM = false
end

-- The names in ARGV after their number at `at`, and the index of the next value.
local function read_names(at)
  local names, last = {}, at + tonumber(ARGV[at])
  for i = at + 1, last do names[#names + 1] = ARGV[i] end
  return names, last + 1
end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  return set
end

-- Read one lane from ARGV[at] on: jobs, exclusive bound of their prompt tokens, sequences, KV tokens, tenants with
-- started work, tenants with waiting work.
local function open_yielding(lane, at)
  local own = {jobs = tonumber(ARGV[at]), shorter_than = tonumber(ARGV[at + 1]), sequences = tonumber(ARGV[at + 2]),
    kv_tokens = tonumber(ARGV[at + 3])}
  if own.shorter_than == 0 then own.shorter_than = math.huge end
  own.tenants, at = read_names(at + 4)
  own.begun = set_of(own.tenants)
  local waiting
  waiting, at = read_names(at)
  own.waiting = set_of(waiting)
  YIELDING[lane.level] = own
  return at
end

-- Read from ARGV[first] on: ms per prompt token (0: not known), the size of the whole worker, the room of each lane, what
-- each lane would yield, and the gateways that it cannot reach.
local function open_room(worker, first)
  PREFILL_MS, MAX_SEQUENCES, POOL_TOKENS = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  for level = 1, #LANES do
    SEQUENCES[level], KV_TOKENS[level] = tonumber(ARGV[first + 2 * level + 1]), tonumber(ARGV[first + 2 * level + 2])
  end
  local at = first + 2 * #LANES + 3
  for _, lane in ipairs(LANES) do at = open_yielding(lane, at) end
  local unreached = read_names(at)
  if #unreached > 0 then UNREACHED = set_of(unreached) end
  WORKER = worker
end

local function window_of(lane)
  return window_at(lane, PREFILL_MS)
end

-- Whether a job could start in this lane without preempting the lane's own work.
local function is_open(lane)
  return SEQUENCES[lane.level] > 0 and KV_TOKENS[lane.level] > 0
end

-- Whether a job that may have killed workers must wait, because another one is here.
local function is_kept_apart(job)
  if job.losses < SUSPECT_LOSSES then return false end
  if HAS_SUSPECT == nil then HAS_SUSPECT = call('ZCOUNT', key('held', WORKER), SUSPECT_LOSSES, '+inf') > 0 end
  return HAS_SUSPECT
end

-- Whether a job could run here after enough other work has ended: all its choices in one step, and each on its own at
-- full length. One whose gateway is out of reach is left to other workers.
local function could_hold(job)
  if UNREACHED and UNREACHED[job.gateway] then return false end
  return job.n <= MAX_SEQUENCES and job.whole <= POOL_TOKENS and not is_kept_apart(job)
end

-- KV tokens of its next step; if they exceed the pool, its choices take turns and it needs the whole pool.
local function tokens_of(job)
  return math.min(job.kv_tokens, POOL_TOKENS)
end

local function fits(job)
  return job.n <= SEQUENCES[job.level] and tokens_of(job) <= KV_TOKENS[job.level]
end

-- Whether it is due, so that room must gather for it.
local function gathers(job)
  return job.due <= NOW and SEQUENCES[job.level] > 0
end

-- Whether it has one choice and starts within its lane's share of the worker.
local function is_within_floor(job)
  return job.n == 1 and tokens_of(job) <= LANE[job.lane].share_floor * POOL_TOKENS
end

local function yields(lane)
  return YIELDING[lane.level].sequences > 0
end

-- Tenants' counters, or the level if that is higher.
local function counters_or_level(lane, tenants)
  local level, counters = tonumber(call('HGET', key('level'), lane.name) or 0), {}
  for first = 1, #tenants, PER_CALL do -- a worker runs as many tenants' jobs as it has sequences
    local part = {unpack(tenants, first, math.min(#tenants, first + PER_CALL - 1))} -- at most PER_CALL
    for i, counter in ipairs(call('ZMSCORE', key('counters', lane.name), unpack(part))) do -- at most PER_CALL
      counters[first + i - 1] = math.max(level, tonumber(counter or 0))
    end
  end
  return counters
end

-- The largest counter of the running tenants, as of the first call. Sets `one_waits` if one that is behind it by more
-- than the window already waits there.
local function most_served(own, lane)
  if not own.most then
    local counters = counters_or_level(lane, own.tenants)
    own.most = 0
    for _, counter in ipairs(counters) do own.most = math.max(own.most, counter) end
    for i, tenant in ipairs(own.tenants) do
      own.one_waits = own.one_waits or (own.waiting[tenant] and own.most - counters[i] > window_of(lane))
    end
  end
  return own.most
end

-- Whether work yields to this job, and frees enough for it (`YieldOffer` in scheduler/queue/take_order.py).
local function suits_offer(job, lane)
  local own, tenant = YIELDING[lane.level], job.tenant
  if job.n > own.sequences or tokens_of(job) > own.kv_tokens then return false end
  if job.guaranteed == 1 then return true end
  if own.waiting[tenant] or #own.tenants == 0 then return false end
  local lead = most_served(own, lane) - counters_or_level(lane, {tenant})[1]
  if own.begun[tenant] then return not own.one_waits and lead > window_of(lane) end
  return own.jobs > 0 and job.prompt < own.shorter_than and lead >= -window_of(lane)
end

-- Record that this job was taken and waits there for work to yield.
local function use_offer(job)
  local own, tenant = YIELDING[job.level], job.tenant
  if own.begun[tenant] then
    own.one_waits = true
  elseif job.guaranteed == 0 then
    own.jobs = own.jobs - 1
  end
  own.waiting[tenant] = true
  own.sequences, own.kv_tokens = own.sequences - job.n, own.kv_tokens - tokens_of(job)
end

local function occupy(job)
  if job.takes_offer then use_offer(job) end
  for below = job.level, #LANES do
    SEQUENCES[below], KV_TOKENS[below] = SEQUENCES[below] - job.n, KV_TOKENS[below] - tokens_of(job)
  end
  if job.losses >= SUSPECT_LOSSES then HAS_SUSPECT = true end
end

-- Take no more jobs of these lanes, so that room gathers.
local function close(first, last)
  for level = first, last do SEQUENCES[level] = 0 end
end

-- The order of candidates.
local RANKING = {'lane', 'tenant', 'gateway', 'returned', 'queued', 'due', 'hard_first', 'hard_end', 'prompt', 'generated', 'n',
  'guaranteed', 'losses', 'whole'}

-- Compare bytes, as sorted sets and Python do; Lua's `<` on strings depends on the server's locale.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- Weighted tokens charged when a job is taken. Work that was computed before is not charged again.
local function provisional_cost(job)
  return (job.generated > 0 and 0 or job.prompt) + job.n * QUANTUM_COST
end

-- Whether to relegate waiting work, and its urgency (scheduler/planner/ordering.py).
local function prospects(slack_ms, service_ms, lead_ms, waited_ms, long_wait_ms, guaranteed)
  if waited_ms >= long_wait_ms then return false, -waited_ms end
  if service_ms > 0 and slack_ms > PLENTY * service_ms then return false, math.huge end
  if service_ms > 0 and slack_ms < 0 and not guaranteed then return true, math.huge end
  return false, slack_ms + SHORT_FIRST * service_ms + LEAD * lead_ms
end

-- Set a job's sort fields; its tenant is ahead by `lead`. A returned job has started and is as urgent as it is late.
local function judge(job, lead)
  local lane = LANE[job.lane]
  local service_ms = job.returned == 1 and 0 or job.prompt * PREFILL_MS
  local lead_ms = (job.returned == 1 or job.guaranteed == 1) and 0 or lead * PREFILL_MS
  local relegated
  relegated, job.urgency =
    prospects(job.due - NOW - service_ms, service_ms, lead_ms, NOW - job.queued, lane.long_wait_ms, job.guaranteed == 1)
  job.service_class = job.guaranteed == 1 and 0 or relegated and 2 or 1
  job.outside = lead > window_of(lane) and job.guaranteed == 0 and 1 or 0
  job.lead = lead
end

local function measured(job)
  job.level, job.kv_tokens = LANE[job.lane].level, job.prompt + job.generated + job.n
  return job
end

-- A waiting job of a lane by its job_id; nil if it has expired, or if the store has evicted its record.
local function find(job_id, lane)
  local job = CANDIDATES[job_id] or load(job_id, RANKING)
  if not job then
    for _, kind in ipairs({'returned', 'guaranteed', 'waiting'}) do call('ZREM', key(kind, lane.name), job_id) end
    return nil
  end
  CANDIDATES[job_id] = CANDIDATES[job_id] or measured(job)
  return expires(job) > NOW and job or nil
end

-- A tenant's first job, as packed by `file_head`.
local function unpack_head(packed, lane, tenant)
  local job = CANDIDATES[packed]
  if not job then
    local ends, queued, due, prompt, n, guaranteed, whole, first = struct.unpack(HEAD_FORMAT, packed)
    if UNREACHED or guaranteed >= RESUMES then return find(packed:sub(first), lane) end -- with its gateway
    job = {job_id = packed:sub(first), lane = lane.name, tenant = tenant, ends = ends, queued = queued, due = due,
      prompt = prompt, n = n, guaranteed = guaranteed, whole = whole, generated = 0, returned = 0, losses = 0}
    CANDIDATES[packed] = measured(job)
  end
  return job.ends > NOW and job or nil
end

-- Add a job to the compared ones; `least` is the smallest counter of its lane.
local function add(jobs, job, counter, least)
  local lead = counter - least
  job.counter = counter
  if job.lead ~= lead then judge(job, lead) end
  jobs[#jobs + 1] = job
end

-- At most `count` jobs that could run here, of the first `looks` jobs of a sorted set between two scores. Also returns how
-- many jobs were read.
local function first_here(set, lane, least, most, looks, count)
  local found, seen, read = {}, 0, 0
  while #found < count and seen < looks do -- reads on only if some of the first jobs could not run
    local part = math.min(OLDEST_PER_TAKE, looks - seen)
    local jobs = call('ZRANGEBYSCORE', set, least, most, 'LIMIT', seen, part)
    read = read + #jobs
    for _, job_id in ipairs(jobs) do
      local job = #found < count and find(job_id, lane)
      if job and could_hold(job) then found[#found + 1] = job end
    end
    if #jobs < part then break end
    seen = seen + part
  end
  return found, read
end

-- Add the first jobs of a lane's list that could run here, up to a score.
local function add_first(jobs, lane, list, most)
  local name = key(list, lane.name)
  if IS_EMPTY[name] then return end
  local found, read = first_here(name, lane, '-inf', most, LOOKS_PER_TAKE, OLDEST_PER_TAKE)
  IS_EMPTY[name] = read == 0
  if #found == 0 then return end
  local backlog = key('backlog', lane.name)
  local least = call('ZRANGE', backlog, 0, 0, 'WITHSCORES')[2] or 0
  for _, job in ipairs(found) do add(jobs, job, tonumber(call('ZSCORE', backlog, job.tenant)), least) end
end

local function returned(lane)
  local jobs = {}
  add_first(jobs, lane, 'returned', '+inf')
  return jobs
end

-- The tenants of a lane with the lowest counters, in order, with counter and packed head. They are read once in a call
-- that leases several jobs, and more than are compared: a lease moves one tenant back.
local function least_served(lane)
  local found = LEAST_SERVED[lane.name]
  if found then return found end
  found = {}
  LEAST_SERVED[lane.name] = found
  local read = call('ZRANGE', key('backlog', lane.name), 0, TENANTS_PER_TAKE + JOBS_PER_CALL - 1, 'WITHSCORES')
  if #read == 0 then return found end
  local tenants = {}
  for i = 1, #read, 2 do tenants[#tenants + 1] = read[i] end
  for i, head in ipairs(call('HMGET', key('heads', lane.name), unpack(tenants))) do -- at most those read
    found[i] = {name = tenants[i], counter = tonumber(read[2 * i]), head = head}
  end
  return found
end

-- Must be called after a job of a tenant has left the lane. `counter` is the tenant's if it still waits there.
local function move_back(lane_name, tenant, counter)
  local found, place = LEAST_SERVED[lane_name], 1
  if not found then return end
  for i, other in ipairs(found) do
    if other.name == tenant then table.remove(found, i) break end
  end
  if not counter then return end
  for i, other in ipairs(found) do
    local is_earlier = other.counter < counter or other.counter == counter and is_before(other.name, tenant)
    if is_earlier then place = i + 1 end
  end
  table.insert(found, place, {name = tenant, counter = counter, head = call('HGET', key('heads', lane_name), tenant)})
end

-- A lane's first job of each least served tenant that could run here, and its first guaranteed jobs.
local function heads(lane)
  local jobs, others, tenants = {}, {}, least_served(lane)
  if #tenants == 0 then return jobs end
  local least = tenants[1].counter
  for i = 1, math.min(#tenants, TENANTS_PER_TAKE) do
    local tenant = tenants[i]
    local job = tenant.head and unpack_head(tenant.head, lane, tenant.name)
    if job and could_hold(job) then
      add(jobs, job, tenant.counter, least)
    elseif tenant.head then
      others[#others + 1] = tenant
    end
  end
  for _, tenant in ipairs(others) do
    local queue, looks = key('queue', lane.name, tenant.name), math.floor(LOOKS_PER_TAKE / #others)
    local job = first_here(queue, lane, 0, '+inf', looks, 1)[1]
    if job then add(jobs, job, tenant.counter, least) end
  end
  add_first(jobs, lane, 'guaranteed', '+inf')
  return jobs
end

-- Add jobs that have waited long enough to go first in their lane and to be promoted to the one above.
local function add_promoted(jobs, lane)
  if not lane or not is_open(lane) then return end
  add_first(jobs, lane, 'waiting', NOW - lane.long_wait_ms)
end

local function heads_and_promoted(lane)
  local jobs = heads(lane)
  add_promoted(jobs, lane)
  add_promoted(jobs, LANES[lane.level + 1])
  return jobs
end

-- The jobs for whose cost their lane's share floor is behind enough.
local function below_floor(jobs)
  local found = {}
  for _, job in ipairs(jobs) do
    if debt_of(LANE[job.lane]) >= math.min(provisional_cost(job), FLOOR_LIMIT) then found[#found + 1] = job end
  end
  return found
end

local function precedes(a, b)
  if a.returned ~= b.returned then return a.returned > b.returned end
  if a.outside ~= b.outside then return a.outside < b.outside end
  if a.service_class ~= b.service_class then return a.service_class < b.service_class end
  if a.urgency ~= b.urgency then return a.urgency < b.urgency end
  if a.counter ~= b.counter then return a.counter < b.counter end
  if a.due ~= b.due then return a.due < b.due end
  return is_before(a.job_id, b.job_id)
end

-- The first of these jobs that fits. A due one that does not fit yet closes the lanes from `lane` to its own.
local function first_to_fit(jobs, lane)
  while true do
    local best
    for _, job in ipairs(jobs) do
      LACKS_ROOM = LACKS_ROOM or IS_SHARD and not fits(job)
      if (fits(job) or gathers(job)) and not (best and precedes(best, job)) then best = job end
    end
    if not best or fits(best) then return best end
    close(lane.level, best.level)
  end
end

-- The first of these jobs, in order, that satisfies `is_wanted`.
local function first_of(jobs, is_wanted, lane)
  local best
  for _, job in ipairs(jobs) do
    if not (best and precedes(best, job)) and is_wanted(job, lane) then best = job end
  end
  return best
end

-- The next job owed to a lane's share floor. A job that needs at most that share and lacks only KV also blocks the
-- lanes above; a lane without a free row already holds its share of the rows.
local function pick_for_floor(lane)
  for _, jobs in ipairs({below_floor(returned(lane)), below_floor(heads(lane))}) do
    local small = first_of(jobs, is_within_floor, lane)
    if small and fits(small) then return small end
    if small and SEQUENCES[lane.level] > 0 then close(1, lane.level) end
    local job = is_open(lane) and first_to_fit(jobs, lane)
    if job then return job end
  end
end

-- The first job, lane by lane, to which work of its own lane yields.
local function pick_yielding()
  for _, lane in ipairs(LANES) do
    if yields(lane) then
      local jobs = returned(lane)
      for _, job in ipairs(heads(lane)) do jobs[#jobs + 1] = job end
      local job = first_of(jobs, suits_offer, lane)
      if job then
        job.takes_offer = true
        return job
      end
    end
  end
end

local function pick()
  for _, lane in ipairs(LANES) do
    if lane.share_floor > 0 and debt_of(lane) >= QUANTUM_COST then
      local job = pick_for_floor(lane)
      if job then return job end
    end
  end
  for _, lane in ipairs(LANES) do
    if is_open(lane) then
      local job = first_to_fit(returned(lane), lane) or first_to_fit(heads_and_promoted(lane), lane)
      if job then return job end
    end
  end
  return pick_yielding()
end
