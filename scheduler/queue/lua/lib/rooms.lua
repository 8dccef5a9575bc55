-- Shared after `prefix_affinity` and `take_order`: registered rooms, and the worker that gets a new job. The rules are in
-- scheduler/queue/rooms.py.
-- A room is a list: sequences and KV tokens of the whole worker, then those that each lane could start. `unreached` is the
-- set of gateways that the worker cannot reach, if there are any. `jobs_wait` is set if jobs waited at its last `turn`.
local function withdraw_room(worker)
  if call('HDEL', key('rooms'), worker) == 0 then return end
  for _, lane in ipairs(LANES) do
    call('ZREM', key('room', lane.name), worker)
    call('ZREM', key('yielding', lane.name), worker)
  end
end

-- List a worker by a number in a sorted set while the number is positive.
local function list_worker(list, number, worker)
  if number > 0 then call('ZADD', list, number, worker) else call('ZREM', list, worker) end
end

local function file_room(worker, room)
  call('HSET', key('rooms'), worker, cmsgpack.pack(room))
  for level, lane in ipairs(LANES) do
    local is_open = room[2 * level + 1] > 0
    list_worker(key('room', lane.name), is_open and room[2 * level + 2] or 0, worker)
  end
end

-- Register what is left of the room that `open_room` read, and the work that would yield. At one of several shards, room
-- that the worker offers to the others can be moved here like room of work that yields.
local function register_room(worker, jobs_wait)
  local room = {MAX_SEQUENCES, POOL_TOKENS, unreached = UNREACHED, jobs_wait = jobs_wait or nil}
  for level, lane in ipairs(LANES) do
    room[2 * level + 1], room[2 * level + 2] = SEQUENCES[level], KV_TOKENS[level]
    local elsewhere = IS_SHARD and tonumber(ARGV[#ARGV - #LANES + level]) or 0
    list_worker(key('yielding', lane.name), YIELDING[level].sequences + elsewhere, worker)
  end
  file_room(worker, room)
end

-- KV tokens that a job needs to start in this room.
local function tokens_in(room, job)
  return math.min(job.prompt + job.generated + job.n, room[2])
end

-- Whether a worker could finish a job after enough other work has ended, and reach its gateway.
local function could_finish(room, job)
  return job.n <= room[1] and job.whole <= room[2] and not (room.unreached and room.unreached[job.gateway])
end

local function fits_room(room, job, level)
  return could_finish(room, job) and job.n <= room[2 * level + 1] and tokens_in(room, job) <= room[2 * level + 2]
end

-- Whether a worker that has any room in this lane may have gained enough for a job, and would not ask by itself.
local function may_have_grown(room, job, level)
  return could_finish(room, job) and room[2 * level + 1] > 0 and not room.jobs_wait
end

-- Whether the room of one of these workers, ROOMS_PER_PUT + 1 at most, satisfies `suits`; returns the first and its room.
local function first_room(workers, suits, job, level)
  if #workers == 0 then return nil end
  for i, packed in ipairs(call('HMGET', key('rooms'), unpack(workers))) do -- at most ROOMS_PER_PUT + 1
    local room = packed and cmsgpack.unpack(packed)
    if room and suits(room, job, level) then return workers[i], room end
  end
end

-- The workers with the most free KV in a job's lane, after its preferred one.
local function nearest_rooms(job, preferred)
  local workers = call('ZREVRANGE', key('room', job.lane), 0, ROOMS_PER_PUT - 1)
  if preferred ~= '' then table.insert(workers, 1, preferred) end
  return workers
end

-- A worker whose room fits this job, and the room; nil if there is none.
local function find_room(job, preferred)
  return first_room(nearest_rooms(job, preferred), fits_room, job, LANE[job.lane].level)
end

-- Whether waiting work may come before a new job of this lane.
local function has_elder(lane)
  for level, other in ipairs(LANES) do
    if is_backlogged(other.name) then
      if level <= lane.level or other.share_floor > 0 and debt_of(other) >= QUANTUM_COST then return true end
      local oldest = call('ZRANGE', key('waiting', other.name), 0, 0, 'WITHSCORES')[2]
      if level == lane.level + 1 and NOW - tonumber(oldest) >= other.long_wait_ms then return true end
    end
  end
  return false
end

-- Lease a new job, which does not wait, to a worker that has room, as `assign` does. The worker reads it from its stream;
-- `given` is the entry.
local function hand_over(job, worker, room)
  for below = LANE[job.lane].level, #LANES do
    room[2 * below + 1], room[2 * below + 2] = room[2 * below + 1] - job.n, room[2 * below + 2] - tokens_in(room, job)
  end
  file_room(worker, room)
  assign(job, worker, provisional_cost(job))
  local lease = describe_lease(job)
  job.given = tell(key('leases', worker), 'b', lease[1], 'e', lease[2], 'a', lease[3], 'g', lease[4], 's', lease[5])
  record_affinity(job.prefix, worker)
end

-- Call a worker for a waiting job: one whose room fits, or else one whose work may yield, or else one whose room may have
-- grown enough. It has no room until it answers. Returns the worker, or '' if there is none.
local function call_worker(job, preferred)
  local near, level = nearest_rooms(job, preferred), LANE[job.lane].level
  local worker = first_room(near, fits_room, job, level)
    or first_room(call('ZREVRANGE', key('yielding', job.lane), 0, ROOMS_PER_PUT - 1), could_finish, job)
    or first_room(near, may_have_grown, job, level)
  if not worker then return '' end
  withdraw_room(worker)
  tell(key('control', worker), 'w', job.job_id)
  return worker
end

-- Call another worker for a job that still waits. Returns whether there is one.
local function call_again(job)
  local record, worker = key('job', job.job_id), ''
  if call('HINCRBY', record, 'passes', 1) <= ROOMS_PER_PUT then worker = call_worker(job, '') end
  call('HSET', record, 'called', worker, 'roused', NOW)
  return worker ~= ''
end
