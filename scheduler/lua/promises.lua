-- Prelude of what books and releases promised time (scheduler/promises.py states the rules). After `base`.
local function bucket_of(due)
  local width = BUCKET_MS
  while width * BUCKETS < due - NOW do width = width * 2 end
  return math.floor(due / width) * width
end

-- The sums of a lane, {due, us} in order; what is long past is dropped.
local function sums_of(lane, mine, claim)
  local name, found, sums = key('promised', lane.name), {}, {}
  local flat = call('HGETALL', name)
  for i = 1, #flat, 2 do
    local due = tonumber(flat[i])
    if due < NOW - PAST_MS then call('HDEL', name, flat[i]) else found[due] = tonumber(flat[i + 1]) end
  end
  if mine then found[mine] = (found[mine] or 0) + claim end
  for due, work in pairs(found) do sums[#sums + 1] = {due, work} end
  table.sort(sums, function(a, b) return a[1] < b[1] end)
  return sums
end

-- Claim time for a job; the bucket to release it from, nil where it does not fit beside what is promised.
local function book(level, due, claim)
  local bucket, above = bucket_of(due), 0
  for other, lane in ipairs(LANES) do
    local sum = above
    for _, each in ipairs(sums_of(lane, other == level and bucket or nil, claim)) do
      sum = sum + each[2]
      local is_later = other > level or other == level and each[1] >= bucket
      if is_later and each[1] >= NOW and sum > 1000 * (each[1] - NOW) then return nil end
    end
    above = sum
  end
  if bucket < NOW then return nil end
  call('HINCRBY', key('promised', LANES[level].name), string.format('%.0f', bucket), claim)
  return bucket
end

-- A job has begun, or is over: what was claimed for it is free.
local function release_claim(job)
  if job.claim == 0 then return end
  local name, bucket = key('promised', job.lane), string.format('%.0f', job.bucket)
  if call('HINCRBY', name, bucket, -job.claim) <= 0 then call('HDEL', name, bucket) end
  call('HSET', key('job', job.flight), 'claim', 0)
  job.claim = 0
end
