-- Prelude of `put` and `take` after `jobs`: the worker that recently computed a prompt's prefix.
-- The rules are in scheduler/queue/prefix_affinity.py.
local function homes_of(generation)
  return key('homes', string.format('%.0f', generation))
end

-- Record that a worker now computes a prompt; `prefix` is the digest of its longest known prefix.
local function file_home(prefix, worker)
  if not prefix or prefix == '' then return end
  local homes = homes_of(math.floor(NOW / HOMES_MS))
  if call('HLEN', homes) < MOST_HOMES or call('HEXISTS', homes, prefix) == 1 then
    call('HSET', homes, prefix, worker)
    call('PEXPIRE', homes, 2 * HOMES_MS)
  end
end

-- Whether a worker lives and is not more loaded than its peers allow.
local function counts_as_home(worker)
  local lapses = call('ZSCORE', key('workers'), worker)
  if not lapses or tonumber(lapses) <= NOW then return false end
  local peers, held = call('ZRANGE', key('workers'), 0, HOME_PEERS - 1), 0
  for _, peer in ipairs(peers) do held = held + call('ZCARD', key('held', peer)) end
  return (call('ZCARD', key('held', worker)) - 1) * #peers <= HOME_LEAD * held
end

-- Whether a job has waited in this lane so long that no worker had room for it.
local function is_short_of_room(lane)
  local oldest = call('ZRANGE', key('waiting', lane), 0, 0, 'WITHSCORES')[2]
  return oldest ~= nil and NOW - tonumber(oldest) > HOME_MS
end

-- The worker of the longest known prefix that counts, or ''. `keys` holds the digests, the shortest prefix first.
local function find_home(keys)
  local prefixes = {}
  for last = #keys, DIGEST_BYTES, -DIGEST_BYTES do
    prefixes[#prefixes + 1] = keys:sub(last - DIGEST_BYTES + 1, last)
  end
  if #prefixes == 0 then return '' end
  local number = math.floor(NOW / HOMES_MS)
  local newer = call('HMGET', homes_of(number), unpack(prefixes)) -- at most LENGTHS
  local older = call('HMGET', homes_of(number - 1), unpack(prefixes)) -- at most LENGTHS
  for i = 1, #prefixes do
    local home = newer[i] or older[i]
    if home and counts_as_home(home) then return home end
  end
  return ''
end
