-- Records of requests with an idempotency key: their owners and their responses.

-- name: idempotency
-- Precedes the scripts on these records: their keys, and their removal. KEYS[1] is the root's prefix, ARGV[1] the API key's
-- public id.
local KEPT_MS = 86400000
local INDEX = KEYS[1] .. 'idems:' .. ARGV[1]
local ANSWERS = KEYS[1] .. 'answers:' .. ARGV[1]
local KEPT = KEYS[1] .. 'kept:' .. ARGV[1]

local function record_of(name)
  return KEYS[1] .. 'idem:' .. ARGV[1] .. ':' .. name
end

local PRINT = 16 -- characters of the fingerprint that distinguish requests under one key

-- Returns the name of what the runs of a request share, and the key of their list.
local function once_of(name, print)
  local once = ARGV[1] .. ':' .. name .. ':' .. string.sub(print, 1, PRINT)
  return once, KEYS[1] .. 'runs:' .. once
end

-- Drops the body of a response; status and headers stay.
local function drop_answer(name)
  local bytes = redis.call('HGET', KEPT, name)
  if bytes then
    redis.call('HDEL', KEPT, name)
    redis.call('HINCRBY', KEPT, 'total', -bytes)
    redis.call('ZREM', ANSWERS, name)
    redis.call('HDEL', record_of(name), 'body')
  end
end

local function drop(name)
  drop_answer(name)
  redis.call('ZREM', INDEX, name)
  redis.call('DEL', record_of(name))
end

-- name: idem_begin
-- Makes the caller the owner of a request, or returns the request's state. The owner may repeat it. Called by
-- IdempotencyRecords.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 public id of the API key, 2 name of the record, 3 owner, 4 fingerprint of the request, 5 lease ms,
--          6 most records per API key; the oldest beyond them is dropped
-- Returns  {'acquired', name of what its runs share, expiry of that and of the record, ms, earlier runs, newest first},
--          {'running'}, {'conflict'} if the key was used for another request, or {'ended', status, headers, 1 if its body is
--          stored}
local name, owner, print, now = ARGV[2], ARGV[3], ARGV[4], now_ms()
for _, old in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', now - KEPT_MS, 'LIMIT', 0, 100)) do drop(old) end

local record = record_of(name)
local found = redis.call('HMGET', record, 'print', 'owner', 'lease_ms', 'began_ms', 'status', 'headers')
local began = tonumber(found[4])
if began and began > now - KEPT_MS then
  if found[1] ~= print then return {'conflict'} end
  if found[5] then return {'ended', found[5], found[6], redis.call('HEXISTS', record, 'body')} end
  if found[2] ~= owner and tonumber(found[3]) > now then return {'running'} end
else
  drop(name)
  began = now
  redis.call('ZADD', INDEX, began, name)
  redis.call('PEXPIRE', INDEX, KEPT_MS)
  if redis.call('ZCARD', INDEX) > tonumber(ARGV[6]) then drop(redis.call('ZRANGE', INDEX, 0, 0)[1]) end
end
redis.call('HSET', record, 'print', print, 'owner', owner, 'lease_ms', now + ARGV[5], 'began_ms', began)
redis.call('PEXPIRE', record, began + KEPT_MS - now)
local once, runs = once_of(name, print)
return {'acquired', once, began + KEPT_MS, redis.call('ZREVRANGE', runs, 0, -1)} -- at most MOST_RUNS

-- name: idem_renew
-- Extends the lease of a running request. Called by IdempotencyRecords.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 public id of the API key, 2 name of the record, 3 owner, 4 lease ms
-- Returns  1, or 0 if another owner has it
local record = record_of(ARGV[2])
if redis.call('HGET', record, 'owner') ~= ARGV[3] then return 0 end
redis.call('HSET', record, 'lease_ms', now_ms() + ARGV[4])
return 1

-- name: idem_finish
-- Stores the response of a request. The owner may repeat it. Called by IdempotencyRecords.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 public id of the API key, 2 name of the record, 3 owner, 4 status, 5 headers as JSON, 6 body, '' where it
--          is not to be stored, 7 most bytes of an API key's bodies; the oldest beyond them are dropped
-- Returns  1, or 0 if another owner has it
local name, body, most = ARGV[2], ARGV[6], tonumber(ARGV[7])
local record = record_of(name)
local found = redis.call('HMGET', record, 'owner', 'began_ms', 'status', 'print')
if found[1] ~= ARGV[3] then return 0 end
if found[3] then return 1 end
redis.call('HSET', record, 'status', ARGV[4], 'headers', ARGV[5])
local _, runs = once_of(name, found[4])
redis.call('DEL', runs) -- no run follows
if #body == 0 or #body > most then return 1 end

redis.call('HSET', record, 'body', body)
redis.call('ZADD', ANSWERS, found[2], name)
redis.call('HSET', KEPT, name, #body)
local total = redis.call('HINCRBY', KEPT, 'total', #body)
while total > most do
  drop_answer(redis.call('ZRANGE', ANSWERS, 0, 0)[1])
  total = tonumber(redis.call('HGET', KEPT, 'total'))
end
for _, key in ipairs({INDEX, ANSWERS, KEPT}) do redis.call('PEXPIRE', key, KEPT_MS) end
return 1

-- name: idem_release
-- Deletes the record of a request that has not ended, so that a retry starts over. Called by IdempotencyRecords.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 public id of the API key, 2 name of the record, 3 owner
-- Returns  1 if there is no record (any more), or 0 if the request has ended or another owner has it
local found = redis.call('HMGET', record_of(ARGV[2]), 'owner', 'status')
if not found[1] then return 1 end
if found[1] ~= ARGV[3] or found[2] then return 0 end
drop(ARGV[2])
return 1

-- name: idem_over
-- Expires what the runs of finished batch lines share. It stays for a while, since a run may still have to be settled.
-- Called by IdempotencyRecords.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     names of what their runs share
-- Returns  0
local SETTLING_MS = 600000
for _, once in ipairs(ARGV) do
  redis.call('DEL', KEYS[1] .. 'runs:' .. once)
  redis.call('PEXPIRE', KEYS[1] .. 'paid:' .. once, SETTLING_MS)
end
return 0
