-- Shared after `jobs`: registered rooms, and calls of workers. The rules are in scheduler/queue/rooms.py.
-- A room is a list: sequences and KV tokens of the whole worker, then those that each lane could start.
local function withdraw_room(worker)
  if call('HDEL', key('rooms'), worker) == 0 then return end
  for _, lane in ipairs(LANES) do call('ZREM', key('room', lane.name), worker) end
end

local function file_room(worker, room)
  call('HSET', key('rooms'), worker, cmsgpack.pack(room))
  for level, lane in ipairs(LANES) do
    local sequences, kv_tokens = room[2 * level + 1], room[2 * level + 2]
    if sequences > 0 and kv_tokens > 0 then
      call('ZADD', key('room', lane.name), kv_tokens, worker)
    else
      call('ZREM', key('room', lane.name), worker)
    end
  end
end

-- KV tokens that a job needs to start in this room.
local function tokens_in(room, job)
  return math.min(job.prompt + job.generated + job.n, room[2])
end

local function fits_room(room, job, level)
  local could_hold = job.n <= room[1] and job.whole <= room[2]
  return could_hold and job.n <= room[2 * level + 1] and tokens_in(room, job) <= room[2 * level + 2]
end

-- A worker whose room fits this job, and the room; nil if there is none.
local function find_room(job, level, preferred)
  local workers = call('ZREVRANGE', key('room', job.lane), 0, ROOMS_PER_PUT - 1)
  if preferred ~= '' then table.insert(workers, 1, preferred) end
  if #workers == 0 then return nil end
  for i, packed in ipairs(call('HMGET', key('rooms'), unpack(workers))) do -- at most ROOMS_PER_PUT + 1
    local room = packed and cmsgpack.unpack(packed)
    if room and fits_room(room, job, level) then return workers[i], room end
  end
end

-- Call a worker for a new job, or wake all. Returns the worker, or '' if all were woken.
local function call_worker(job, preferred)
  local level = LANE[job.lane].level
  local worker, room = find_room(job, level, preferred)
  if not worker then
    wake(preferred)
    return ''
  end
  for below = level, #LANES do
    room[2 * below + 1], room[2 * below + 2] = room[2 * below + 1] - job.n, room[2 * below + 2] - tokens_in(room, job)
  end
  file_room(worker, room)
  call('SADD', key('calls', worker), job.job_id)
  if call('ZADD', key('called'), 'NX', NOW, worker) == 1 then tell(key('control', worker), 'w', '') end
  return worker
end

-- Whether a job that a worker was called for still waits; others are dropped. After PER_CALL of those, one is assumed
-- to wait.
local function has_waiting_call(calls)
  for _ = 1, PER_CALL do
    local job_id = call('SPOP', calls)
    if not job_id then return false end
    if call('HGET', key('job', job_id), 'state') == 'queued' then
      call('SADD', calls, job_id)
      return true
    end
  end
  return true
end

-- Close a worker's calls, because it answered or, if `late`, never will.
local function settle_calls(worker, late)
  local calls = key('calls', worker)
  if call('ZREM', key('called'), worker) == 0 or not has_waiting_call(calls) then return end
  local last = not late and call('ZREVRANGE', key('called'), 0, 0)[1]
  if last then
    local others = key('calls', last)
    call('SUNIONSTORE', others, others, calls)
  else
    wake()
  end
  call('DEL', calls)
end

-- Close calls that were not answered in time, or that have a future time because the clock was set back. Returns ms
-- until the next call is late, or 0 if none is open.
local function rouse_late()
  if call('EXISTS', key('called')) == 0 then return 0 end
  for _, span in ipairs({{'-inf', NOW - CALL_PATIENCE_MS}, {'(' .. NOW, '+inf'}}) do
    for _, worker in ipairs(call('ZRANGEBYSCORE', key('called'), span[1], span[2], 'LIMIT', 0, math.floor(PER_CALL / 2))) do
      withdraw_room(worker)
      settle_calls(worker, true)
    end
  end
  local first = call('ZRANGE', key('called'), 0, 0, 'WITHSCORES')[2]
  return first and math.max(1, tonumber(first) + CALL_PATIENCE_MS - NOW) or 0
end
