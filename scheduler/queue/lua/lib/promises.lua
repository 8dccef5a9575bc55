-- Shared after `base`: booking of guaranteed time. The rules are in scheduler/queue/promises.py.
local function bucket_of(due)
  local width = BUCKET_MS
  while width * BUCKETS < due - NOW do width = width * 2 end
  return math.floor(due / width) * width
end

-- Record work (us of all workers) that arrived in a lane.
local function ask(lane, work)
  if work <= 0 then return end
  local bucket = string.format('%.0f', math.floor(NOW / BUCKET_MS) * BUCKET_MS)
  call('HINCRBY', key('asked', lane), bucket, string.format('%.0f', work))
end

-- The fraction of all time that was recently requested in a lane, in millionths.
local function part_of(lane)
  local name, weighted, surging = key('asked', lane), 0, 0
  local flat = call('HGETALL', name) -- at most the buckets of RECENT_MS
  for i = 1, #flat, 2 do
    local age = NOW - tonumber(flat[i])
    if age < 0 or age >= RECENT_MS then
      call('HDEL', name, flat[i])
    else
      weighted = weighted + tonumber(flat[i + 1]) * (RECENT_MS - age)
      surging = surging + tonumber(flat[i + 1]) * math.max(0, SURGE_MS - age)
    end
  end
  local part, surge = weighted * 2000 / (RECENT_MS * RECENT_MS), surging * 2000 / (SURGE_MS * SURGE_MS)
  return math.floor(math.max(part, surge))
end

-- The fraction of the time that a lane always has, in millionths; it is too small to guarantee anything.
local function least_free(level)
  if level == 1 then return 0 end
  return WHOLE - math.min(math.floor(MAX_TAKEN * WHOLE), math.floor((1 - LANES[level].share_floor) * WHOLE))
end

-- The fraction of the time that the lanes above leave to each lane.
local function free_parts()
  local free, asked = {}, 0
  for level, lane in ipairs(LANES) do
    free[level] = math.max(WHOLE - asked, least_free(level))
    if level < #LANES then asked = asked + part_of(lane.name) end
  end
  return free
end

-- The sums of a lane, {due, us}; overdue ones are dropped.
local function sums_of(lane, mine, claim)
  local name, found, sums = key('promised', lane.name), {}, {}
  local flat = call('HGETALL', name) -- at most the BUCKETS of each width
  for i = 1, #flat, 2 do
    local due = tonumber(flat[i])
    if due < NOW - PAST_MS then call('HDEL', name, flat[i]) else found[due] = tonumber(flat[i + 1]) end
  end
  if mine then found[mine] = (found[mine] or 0) + claim end
  for due, work in pairs(found) do sums[#sums + 1] = {due, work} end
  return sums
end

-- Claim time for a job. Returns the bucket to release it from, or nil if it does not fit next to earlier claims.
local function book(level, due, claim)
  local bucket, above, free = bucket_of(due), 0, free_parts()
  if bucket < NOW or free[level] <= least_free(level) then return nil end
  for other, lane in ipairs(LANES) do
    local sum, sums = above, sums_of(lane, other == level and bucket or nil, claim)
    table.sort(sums, function(a, b) return a[1] < b[1] end)
    for _, each in ipairs(sums) do
      sum = sum + each[2]
      local is_later = other > level or other == level and each[1] >= bucket
      if is_later and each[1] >= NOW and sum * 1000 > (each[1] - NOW) * free[other] then return nil end
    end
    above = sum
  end
  call('HINCRBY', key('promised', LANES[level].name), string.format('%.0f', bucket), string.format('%.0f', claim))
  return bucket
end

-- How late best effort would miss its first token's hard deadline if nothing took longer than expected.
local function late_by(level, hard, claim)
  local sum = claim
  for other = 1, level do
    for _, each in ipairs(sums_of(LANES[other])) do sum = sum + each[2] end
  end
  return math.ceil(sum * 1000 / MARGIN / free_parts()[level]) - (hard - NOW)
end

local function release_claim(job)
  if job.claim == 0 then return end
  local name, bucket = key('promised', job.lane), string.format('%.0f', job.bucket)
  if call('HINCRBY', name, bucket, string.format('%.0f', -job.claim)) <= 0 then call('HDEL', name, bucket) end
  call('HSET', key('job', job.job_id), 'claim', 0)
  job.claim = 0
end
