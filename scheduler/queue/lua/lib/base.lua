-- Shared by all functions, first. While the store loads a library, it has none of Lua's own functions.
-- KEYS[1] is the queue's prefix `fl:{queue}:`; all other keys are built from it and share
-- its hash tag (scheduler/queue/keys.py lists them). ARGV[1] is the clock in ms, '' for the server's own (only tests set
-- it). Times are ms, costs weighted tokens. scheduler/queue/keys.py prepends the constants in capitals: LANES (most
-- urgent first: name, level, max_wait_ms, long_wait_ms, burst_ms, share_floor, max_queued), LANE (by name), LEASE_MS, …
-- Pass numbers to redis.call unchanged: it writes doubles with 17 digits. Never concatenate a double: `..` keeps 14.
local call, ARGV, PREFIX, NOW -- of the present call
local IS_SHARD -- whether the queue is one of several shards, by its name (scheduler/queue/shards.py)
local AT_BEGIN = {} -- functions that discard what the last call left

local function key(kind, name, part)
  if part then return PREFIX .. kind .. ':' .. name .. ':' .. part end
  return name and PREFIX .. kind .. ':' .. name or PREFIX .. kind
end

local function clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Must be called first by every function.
local function begin(keys, given)
  call, ARGV, PREFIX = redis.call, given, keys[1]
  NOW, IS_SHARD = clock(), PREFIX:find('@[^@/]*/%d+[.%d]*}:$') ~= nil
  for _, discard in ipairs(AT_BEGIN) do discard() end
end

-- The fields of a record, without its body; `lane` comes first.
local FIELDS = {'lane', 'tenant', 'gateway', 'state', 'worker', 'outcome', 'weight', 'n', 'prompt', 'guaranteed', 'due',
  'hard_first', 'hard_end', 'epoch', 'arrived', 'queued', 'taken', 'cancelled', 'returned', 'losses',
  'generated', 'credit', 'follows', 'whole', 'claim', 'bucket', 'prefix', 'marks'}
local IS_TEXT = {body = true, lane = true, tenant = true, gateway = true, state = true, worker = true, outcome = true,
  prefix = true, marks = true}

-- A job's record, or some of its fields; nil if it is unknown. Numbers absent in records of older releases are 0.
local function load(job_id, fields)
  fields = fields or FIELDS
  local values = call('HMGET', key('job', job_id), unpack(fields)) -- at most the FIELDS
  if not values[1] then return nil end
  local job = {job_id = job_id}
  for i = 1, #fields do
    local field = fields[i]
    job[field] = IS_TEXT[field] and values[i] or tonumber(values[i] or 0)
  end
  return job
end

local function describe(job)
  return {job.state, job.outcome, job.prompt, job.worker, job.tenant, job.lane, job.gateway, job.cancelled, job.epoch,
    job.guaranteed, job.generated}
end

-- Append an entry to a stream, which is bounded and expires an hour after its last entry. Returns the entry's id.
local function tell(stream, ...)
  local entry = call('XADD', stream, 'MAXLEN', '~', STREAM_LENGTH, '*', ...)
  call('PEXPIRE', stream, RECORD_TTL_MS)
  return entry
end
