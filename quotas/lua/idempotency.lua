-- Records of requests with an idempotency key: their owners and their responses.

-- name: idempotency
-- Precedes the scripts on one record: its names, and its removal. ARGV is the API key's public id, the record's name, its owner,
-- and the script's own arguments. A call with another owner than the record's changes nothing.
local KEPT_MS = 86400000
local key_id, name, owner = ARGV[1], ARGV[2], ARGV[3]
local INDEX = KEYS[1] .. 'idems:' .. key_id
local ANSWERS = KEYS[1] .. 'answers:' .. key_id
local KEPT = KEYS[1] .. 'kept:' .. key_id

local function record_of(named) return KEYS[1] .. 'idem:' .. key_id .. ':' .. named end

local record = record_of(name)
local PRINT = 16 -- characters of the fingerprint that distinguish requests under one key

-- Returns the name of what the runs of the request share, and the key of their list.
local function once_of(print)
  local once = key_id .. ':' .. name .. ':' .. string.sub(print, 1, PRINT)
  return once, KEYS[1] .. 'runs:' .. once
end

-- Drops the body of a response; status and headers stay.
local function drop_answer(named)
  local bytes = redis.call('HGET', KEPT, named)
  if bytes then
    redis.call('HDEL', KEPT, named)
    redis.call('HINCRBY', KEPT, 'total', -bytes)
    redis.call('ZREM', ANSWERS, named)
    redis.call('HDEL', record_of(named), 'body')
  end
end

local function drop(named)
  drop_answer(named)
  redis.call('ZREM', INDEX, named)
  redis.call('DEL', record_of(named))
end

-- name: idem_begin
-- Makes the caller the owner of a request, or returns the request's state. The owner may repeat it. Returns {'acquired', name of
-- what its runs share, expiry of that and of the record, ms, earlier runs, newest first}, {'running'}, {'conflict'} if the key
-- was used for another request, or {'ended', status, headers, 1 if its body is stored}.
local print, lease_ms, most_records, now = ARGV[4], ARGV[5], tonumber(ARGV[6]), now_ms()
for _, old in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', now - KEPT_MS, 'LIMIT', 0, 100)) do drop(old) end

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
  if redis.call('ZCARD', INDEX) > most_records then drop(redis.call('ZRANGE', INDEX, 0, 0)[1]) end
end
redis.call('HSET', record, 'print', print, 'owner', owner, 'lease_ms', now + lease_ms, 'began_ms', began)
redis.call('PEXPIRE', record, began + KEPT_MS - now)
local once, runs = once_of(print)
return {'acquired', once, began + KEPT_MS, redis.call('ZREVRANGE', runs, 0, -1)} -- at most MOST_RUNS

-- name: idem_renew
-- Extends the lease of a running request. Returns 1, or 0 if another owner has it.
local lease_ms = ARGV[4]
if redis.call('HGET', record, 'owner') ~= owner then return 0 end
redis.call('HSET', record, 'lease_ms', now_ms() + lease_ms)
return 1

-- name: idem_finish
-- Stores the response of a request, with its body unless that is ''; drops the API key's oldest bodies over `most` bytes. The
-- owner may repeat it. Returns 1, or 0 if another owner has it.
local status, headers, body, most = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local found = redis.call('HMGET', record, 'owner', 'began_ms', 'status', 'print')
if found[1] ~= owner then return 0 end
if found[3] then return 1 end
redis.call('HSET', record, 'status', status, 'headers', headers)
local _, runs = once_of(found[4])
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
-- Deletes the record of a request that has not ended, so that a retry starts over. Returns 1 if there is no record (any more), or
-- 0 if the request has ended or another owner has it.
local found = redis.call('HMGET', record, 'owner', 'status')
if not found[1] then return 1 end
if found[1] ~= owner or found[2] then return 0 end
drop(name)
return 1

-- name: idem_over
-- Expires what the runs of finished batch lines share (ARGV: its names). It stays for a while, since a run may still have to be
-- settled.
local SETTLING_MS = 600000
for _, once in ipairs(ARGV) do
  redis.call('DEL', KEYS[1] .. 'runs:' .. once)
  redis.call('PEXPIRE', KEYS[1] .. 'paid:' .. once, SETTLING_MS)
end
return 0

-- name: idem_charged
-- Reads what the runs of batch lines (ARGV: their names) were charged. Returns for each {prompt, cached and output tokens, 1 if a run
-- is not settled yet}.
local found = {}
for number, once in ipairs(ARGV) do
  local paid = redis.call('HMGET', KEYS[1] .. 'paid:' .. once, 'input', 'cached', 'output')
  local is_open = 0
  for _, run in ipairs(redis.call('ZRANGE', KEYS[1] .. 'runs:' .. once, 0, -1)) do -- at most MOST_RUNS
    if redis.call('ZSCORE', KEYS[1] .. 'leases', run) then is_open = 1 end
  end
  found[number] = {tonumber(paid[1]) or 0, tonumber(paid[2]) or 0, tonumber(paid[3]) or 0, is_open}
end
return found
