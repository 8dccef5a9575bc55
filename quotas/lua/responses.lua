-- Stored responses, which tenants can read again or continue from.

-- name: responses
-- Precedes the scripts on responses: their keys, and their removal. KEYS[1] is the root's prefix, ARGV[1] the tenant.
local INDEX = KEYS[1] .. 'responses:' .. ARGV[1]
local BYTES = KEYS[1] .. 'responsebytes:' .. ARGV[1]

local function response_of(name)
  return KEYS[1] .. 'response:' .. ARGV[1] .. ':' .. name
end

-- Deletes a response; returns 1 if there was one.
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
-- Stores a response, and evicts the tenant's oldest ones beyond its bounds. Called by KeptResponses.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 name of the response, 3 content, 4 lifetime, ms, 5 the tenant's most bytes, 6 its most responses
-- Returns  1, or 0 if it alone exceeds the bytes
local name, content, ttl, most = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
if #content > most then return 0 end
local now = now_ms()
for _, old in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', now, 'LIMIT', 0, 100)) do drop(old) end
if redis.call('EXISTS', INDEX) == 0 then redis.call('DEL', BYTES) end -- the store evicted the index alone: its responses expire

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
-- Deletes a response. Called by KeptResponses.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 name of the response
-- Returns  1, or 0 if there was none
return drop(ARGV[2]) == 1 and once(1) or 0

-- name: responses_drop
-- Deletes some of a tenant's responses. Called by forget_responses, until none is left.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 most responses to delete
-- Returns  the number of responses left
local names = redis.call('ZRANGE', INDEX, 0, ARGV[2] - 1)
for _, name in ipairs(names) do drop(name) end
local left = redis.call('ZCARD', INDEX)
if left == 0 then redis.call('DEL', BYTES) end
return left
