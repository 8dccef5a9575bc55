-- Prelude of `take`: the one order of candidates (scheduler/lane_order.py states it). After `moves`.
local ORDERING = {'lane', 'tenant', 'returned', 'queued', 'due', 'hard_first', 'hard_end', 'prompt', 'generated', 'n',
  'guaranteed', 'losses'}
local CANDIDATES, COUNTERS, FLOORS = {}, {}, {}
for _, lane in ipairs(LANES) do COUNTERS[lane.name] = {} end

-- Byte by byte, as sorted sets and Python order ids: Lua's own `<` on strings follows the server's locale.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- Weighted tokens that taking a job is charged: nobody pays again for what was computed before.
local function provisional_cost(job)
  return (job.generated > 0 and 0 or job.prompt) + job.n * QUANTUM_COST
end

-- Make a waiting job a candidate, unless its time is over.
local function offer(flight)
  local job = not CANDIDATES[flight] and load(flight, ORDERING)
  if not job or expires(job) <= NOW then return end
  local lane, counters = LANE[job.lane], COUNTERS[job.lane]
  local promoted = lane.level > 1 and job.queued <= NOW - lane.max_wait_ms / 2
  local slack = (job.due - NOW) / math.max(1, job.prompt + job.generated)
  job.rank = {0, promoted and lane.level - 1 or lane.level, 1 - job.returned, 0, 1 - job.guaranteed, slack, 0}
  counters[job.tenant] = counters[job.tenant] or tonumber(call('ZSCORE', key('backlog', job.lane), job.tenant))
  CANDIDATES[flight] = job
end

-- The parts of a rank that a taking changes: owed, outside the window, counter.
local function refresh(job)
  local lane, counter = LANE[job.lane], COUNTERS[job.lane][job.tenant]
  FLOORS[job.lane] = FLOORS[job.lane] or tonumber(call('ZRANGE', key('backlog', job.lane), 0, 0, 'WITHSCORES')[2])
  local is_owed = lane.share_floor > 0 and owed_to(job.lane) >= math.min(provisional_cost(job), OWED_LIMIT)
  job.rank[1] = is_owed and 0 or 1
  job.rank[4] = counter <= FLOORS[job.lane] + WINDOW and 0 or 1
  job.rank[7] = counter
end

local function precedes(a, b)
  for i = 1, #a.rank do
    if a.rank[i] ~= b.rank[i] then return a.rank[i] < b.rank[i] end
  end
  return is_before(a.flight, b.flight)
end

-- The first candidate, which is one no more; nil where there is none.
local function pick()
  local best
  for _, job in pairs(CANDIDATES) do
    refresh(job)
    if not best or precedes(job, best) then best = job end
  end
  if best then CANDIDATES[best.flight] = nil end
  return best
end
