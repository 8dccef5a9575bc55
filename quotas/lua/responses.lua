-- Responses that tenants have kept for a while, to read them again or to go on from them.

-- name: responses
-- Stands before what keeps responses: where each stands, and how it goes.
-- KEYS[1] is the prefix of the root, ARGV[1] the tenant.
local INDEX = KEYS[1] .. 'responses:' .. ARGV[1]
local BYTES = KEYS[1] .. 'responsebytes:' .. ARGV[1]

local function response_of(name)
  return KEYS[1] .. 'response:' .. ARGV[1] .. ':' .. name
end

-- Forgets one; 1 where it was there.
local function drop(name)
  local bytes = redis.call('HGET', BYTES, name)
  if bytes then
    redis.call('HDEL', BYTES, name)
    redis.call('HINCRBY', BYTES, 'total', -bytes)
    redis.call('ZREM', INDEX, name)
  end
  return redis.call('DEL', response_of(name))
end

-- name: response_keep
-- Keeps a response, and forgets the oldest of its tenant that are too many or too large together. Called by
-- KeptResponses.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 name of the response, 3 content, 4 how long, ms, 5 most bytes of the tenant's, 6 most of them
-- Returns  1, or 0 where it alone is more than all may be
local name, content, ttl, most = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
if #content > most then return 0 end
local now = now_ms()
for _, old in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', now, 'LIMIT', 0, 100)) do drop(old) end
if redis.call('EXISTS', INDEX) == 0 then redis.call('DEL', BYTES) end -- evicted alone: what it listed goes by itself

drop(name)
redis.call('HSET', response_of(name), 'body', content)
redis.call('PEXPIRE', response_of(name), ttl)
redis.call('ZADD', INDEX, now + ttl, name)
redis.call('HSET', BYTES, name, #content)
local total = redis.call('HINCRBY', BYTES, 'total', #content)
while total > most or redis.call('ZCARD', INDEX) > tonumber(ARGV[6]) do
  drop(redis.call('ZRANGE', INDEX, 0, 0)[1])
  total = tonumber(redis.call('HGET', BYTES, 'total'))
end
for _, key in ipairs({INDEX, BYTES}) do redis.call('PEXPIRE', key, math.max(ttl, redis.call('PTTL', key))) end
return 1

-- name: response_drop
-- Forgets a response. Called by KeptResponses.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 name of the response
-- Returns  1, or 0 where there was none
return drop(ARGV[2]) == 1 and once(1) or 0

-- name: responses_drop
-- Forgets a tenant's responses, so many at most. Called by forget_responses, until none is left.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 how many
-- Returns  how many are left
local names = redis.call('ZRANGE', INDEX, 0, ARGV[2] - 1)
for _, name in ipairs(names) do drop(name) end
local left = redis.call('ZCARD', INDEX)
if left == 0 then redis.call('DEL', BYTES) end
return left
