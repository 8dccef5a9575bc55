-- Records of requests. KEYS[1] is the prefix of all keys, fl:records:{requests}: with one hash tag for all scripts.
--
--   docs          hash  id -> length of its names, `:`, `@` with its account and its names (each with a NUL after it),
--                       and the msgpack of a RequestRecord: ended requests
--   names         hash  other name -> id: `T/<account>/<name>` for the tenant, `R/<name>` for operators, where the name
--                       is the request's or the answer's id; the newest wins. An account contains no slash
--   of:<account>  zset  ids of its documents by the end of the request, for an erasure
--   ends          zset  ids by the end of the request, epoch ms: the ring
--   plain         zset  those of `ends` that are not special; they are evicted first
--   gateways      zset  gateways with running requests, by their last report, ms by the store's clock
--   live:<G>      hash  of one gateway: id -> record, other name -> id, of running requests; expires with its gateway

-- name: shared
-- Precedes every script of this folder.
local prefix = KEYS[1]
local docs, names, ends, plain = prefix .. 'docs', prefix .. 'names', prefix .. 'ends', prefix .. 'plain'

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function split_names(packed)
  local found = {}
  for name in string.gmatch(packed, '([^%z]+)%z') do found[#found + 1] = name end
  return found
end

-- Return the record of a document, and its packed names; '' for none.
local function record_and_names(stored)
  local length, start = string.match(stored or '', '^(%d+):()')
  if not length then return '', '' end
  return string.sub(stored, start + length), string.sub(stored, start, start + length - 1)
end

-- Delete names that still belong to this id.
local function delete_names(key, its_names, id)
  for _, name in ipairs(its_names) do
    if redis.call('HGET', key, name) == id then redis.call('HDEL', key, name) end
  end
end

-- Delete the record of an ended request.
local function delete_ended(id)
  local _, packed = record_and_names(redis.call('HGET', docs, id))
  local its_names = split_names(packed)
  local account = table.remove(its_names, 1)
  delete_names(names, its_names, id)
  if account then redis.call('ZREM', prefix .. 'of:' .. string.sub(account, 2), id) end
  redis.call('HDEL', docs, id)
  redis.call('ZREM', ends, id)
  redis.call('ZREM', plain, id)
end

-- name: records_write
-- Stores one gateway's records of ended and running requests, and removes running ones that are over.
-- ARGV     1 gateway, 2 most ended records, 3 number of plain ones above which these are evicted first, 4 ms for which
--          running ones are kept (0: another gateway writes for this one), 5 number of ended ones; for each: id, end
--          (ms), 1 or 0 (special), names, record; then the number of running ones; for each: id, names, record; then
--          for those that are over: id, names
local gateway, at = ARGV[1], 5
local live, gateways = prefix .. 'live:' .. gateway, prefix .. 'gateways'

local function next_argument()
  at = at + 1
  return ARGV[at]
end

for _ = 1, tonumber(ARGV[5]) do
  local id, ended, is_special, packed, doc =
    next_argument(), next_argument(), next_argument(), next_argument(), next_argument()
  redis.call('HSET', docs, id, #packed .. ':' .. packed .. doc)
  local its_names = split_names(packed)
  redis.call('ZADD', prefix .. 'of:' .. string.sub(table.remove(its_names, 1), 2), ended, id)
  for _, name in ipairs(its_names) do redis.call('HSET', names, name, id) end
  redis.call('ZADD', ends, ended, id)
  if is_special == '1' then
    redis.call('ZREM', plain, id)
  else
    redis.call('ZADD', plain, ended, id)
  end
end

local excess = math.min(redis.call('ZCARD', ends) - ARGV[2], 2 * 64) -- a call adds 64 at most
while excess > 0 do
  local from = redis.call('ZCARD', plain) > tonumber(ARGV[3]) and plain or ends
  delete_ended(redis.call('ZRANGE', from, 0, 0)[1])
  excess = excess - 1
end

local running = tonumber(next_argument())
for _ = 1, running do
  local id, packed, doc = next_argument(), next_argument(), next_argument()
  redis.call('HSET', live, id, doc)
  for _, name in ipairs(split_names(packed)) do redis.call('HSET', live, name, id) end
end
while at < #ARGV do
  local id, packed = next_argument(), next_argument()
  redis.call('HDEL', live, id)
  delete_names(live, split_names(packed), id)
end
if redis.call('EXISTS', live) == 0 then
  redis.call('ZREM', gateways, gateway)
elseif tonumber(ARGV[4]) > 0 then
  local now = now_ms()
  redis.call('PEXPIRE', live, ARGV[4])
  redis.call('ZADD', gateways, now, gateway)
  redis.call('ZREMRANGEBYSCORE', gateways, '-inf', now - ARGV[4])
end

-- name: records_find
-- Returns one record by any of its names, ended or not.
-- ARGV     1 id or other name
-- Returns  {document, ms since its gateway's last report, or -1 if it has ended, its gateway}, or nothing
local id = redis.call('HGET', names, ARGV[1]) or ARGV[1]
local stored = redis.call('HGET', docs, id)
local found
if stored then found = {(record_and_names(stored)), -1, ''} end
local now = now_ms()
local gateways = redis.call('ZRANGE', prefix .. 'gateways', 0, -1, 'WITHSCORES') -- at most the gateways
for place = 1, #gateways, 2 do
  local live = prefix .. 'live:' .. gateways[place]
  local running = string.find(ARGV[1], '/', 1, true) and redis.call('HGET', live, ARGV[1]) or ARGV[1]
  local doc = running and (running ~= id or not found) and redis.call('HGET', live, running)
  if doc then return {doc, math.floor(now - gateways[place + 1]), gateways[place]} end
end
return found or {}

-- name: records_ended
-- Returns a part of the ring, newest first.
-- ARGV     1 the latest end, ms, or +inf, 2 number of records to skip, 3 most records, 4 their account, '' for any
-- Returns  documents
local index = ARGV[4] == '' and ends or prefix .. 'of:' .. ARGV[4]
local ids = redis.call('ZREVRANGEBYSCORE', index, ARGV[1], '-inf', 'LIMIT', ARGV[2], ARGV[3])
if #ids == 0 then return {} end
local found = {}
for place, stored in ipairs(redis.call('HMGET', docs, unpack(ids))) do -- at most ARGV[3]
  found[place] = record_and_names(stored)
end
return found

-- name: records_running
-- Returns a page of the running requests of one gateway. The last page has the cursor 0.
-- ARGV     1 gateway, 2 cursor, 0 at first, 3 about how many entries to read
-- Returns  {ms since the gateway's last report, next cursor, document, …}; a document may appear twice. {} without the
--          gateway
local spoke = redis.call('ZSCORE', prefix .. 'gateways', ARGV[1])
if not spoke then return {} end
local page = redis.call('HSCAN', prefix .. 'live:' .. ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local found, all = {math.floor(now_ms() - spoke), page[1]}, page[2]
for place = 1, #all, 2 do
  if not string.find(all[place], '/', 1, true) then found[#found + 1] = all[place + 1] end
end
return found

-- name: records_left
-- Removes a gateway and its running requests.
-- ARGV     1 gateway
redis.call('DEL', prefix .. 'live:' .. ARGV[1])
redis.call('ZREM', prefix .. 'gateways', ARGV[1])

-- name: records_erase
-- Deletes records of ended requests, with their names.
-- ARGV     1 their account, 2… ids
local account = table.remove(ARGV, 1)
for _, id in ipairs(ARGV) do
  delete_ended(id)
  redis.call('ZREM', prefix .. 'of:' .. account, id)
end
