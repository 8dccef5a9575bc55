-- Prelude of `put` and `take`, after `jobs`: which worker computed a prompt's beginning of late.
-- scheduler/queue/homes.py states the rules.
local function homes_of(generation)
  return key('homes', string.format('%.0f', generation))
end

-- This worker computes a prompt now: `prefix` is the digest of its longest beginning.
local function file_home(prefix, worker)
  if not prefix or prefix == '' then return end
  local homes = homes_of(math.floor(NOW / HOMES_MS))
  if call('HLEN', homes) < MOST_HOMES or call('HEXISTS', homes, prefix) == 1 then
    call('HSET', homes, prefix, worker)
    call('PEXPIRE', homes, 2 * HOMES_MS)
  end
end

-- This worker lives, and holds no more jobs than it may beside its peers.
local function counts_as_home(worker)
  local lapses = call('ZSCORE', key('workers'), worker)
  if not lapses or tonumber(lapses) <= NOW then return false end
  local peers, held = call('ZRANGE', key('workers'), 0, HOME_PEERS - 1), 0
  for _, peer in ipairs(peers) do held = held + call('ZCARD', key('held', peer)) end
  return (call('ZCARD', key('held', worker)) - 1) * #peers <= HOME_LEAD * held
end

-- Somebody has waited in this lane for so long that no worker can have had room at once.
local function is_short_of_room(lane)
  local oldest = call('ZRANGE', key('waiting', lane), 0, 0, 'WITHSCORES')[2]
  return oldest ~= nil and NOW - tonumber(oldest) > HOME_MS
end

-- The home of the longest of these beginnings, the shortest first in `keys`, that has one that counts; '' where none.
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
