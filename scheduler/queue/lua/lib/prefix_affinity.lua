-- Shared after `jobs`: the worker that recently computed a prompt's prefix.
-- The rules are in scheduler/queue/prefix_affinity.py.
local function affinities_of(generation)
  return key('homes', string.format('%.0f', generation))
end

-- Record that a worker now computes a prompt; `prefix` is the digest of its longest known prefix.
local function record_affinity(prefix, worker)
  if not prefix or prefix == '' then return end
  local affinities = affinities_of(math.floor(NOW / AFFINITY_GENERATION_MS))
  local count = call('HLEN', affinities)
  if count < MAX_AFFINITIES or call('HEXISTS', affinities, prefix) == 1 then
    call('HSET', affinities, prefix, worker)
    if count == 0 then call('PEXPIRE', affinities, 2 * AFFINITY_GENERATION_MS) end
  end
end

-- Whether a worker lives and is not more loaded than its peers allow.
local function may_be_preferred(worker)
  local lapses = call('ZSCORE', key('workers'), worker)
  if not lapses or tonumber(lapses) <= NOW then return false end
  local peers, held = call('ZRANGE', key('workers'), 0, AFFINITY_PEERS - 1), 0
  for _, peer in ipairs(peers) do held = held + call('ZCARD', key('held', peer)) end
  return (call('ZCARD', key('held', worker)) - 1) * #peers <= AFFINITY_LOAD_RATIO * held
end

-- Whether a job has waited in this lane so long that no worker had room for it.
local function is_short_of_room(lane)
  local oldest = call('ZRANGE', key('waiting', lane), 0, 0, 'WITHSCORES')[2]
  return oldest ~= nil and NOW - tonumber(oldest) > AFFINITY_DELAY_MS
end

-- The worker of the longest known prefix that counts, or ''. `keys` holds the digests, the shortest prefix first.
local function find_preferred(keys)
  local prefixes = {}
  for last = #keys, DIGEST_BYTES, -DIGEST_BYTES do
    prefixes[#prefixes + 1] = keys:sub(last - DIGEST_BYTES + 1, last)
  end
  if #prefixes == 0 then return '' end
  local number = math.floor(NOW / AFFINITY_GENERATION_MS)
  local newer = call('HMGET', affinities_of(number), unpack(prefixes)) -- at most LENGTHS
  local older = call('HMGET', affinities_of(number - 1), unpack(prefixes)) -- at most LENGTHS
  for i = 1, #prefixes do
    local preferred = newer[i] or older[i]
    if preferred and may_be_preferred(preferred) then return preferred end
  end
  return ''
end
