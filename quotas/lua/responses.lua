-- Stored responses, which tenants can read again or continue from.

-- name: responses
-- Precedes the scripts on responses: their keys, and their removal. ARGV[1] is the tenant.
local INDEX = KEYS[1] .. 'responses:' .. ARGV[1]
local BYTES = KEYS[1] .. 'responsebytes:' .. ARGV[1]

local function response_of(name) return KEYS[1] .. 'response:' .. ARGV[1] .. ':' .. name end

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
-- Stores a response, and evicts the tenant's oldest ones over its bounds. With ARGV[7] it replaces only the content that
-- has this SHA-1. Returns 1, or 0 if it alone exceeds the bytes, or -1 if there is none to replace or another one.
local name, content, ttl_ms, most_bytes, most_responses = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if #content > most_bytes then return 0 end
if ARGV[7] then
  local old = redis.call('HGET', response_of(name), 'body')
  if not old or redis.sha1hex(old) ~= ARGV[7] then return -1 end
end
local now = now_ms()
for _, old in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', now, 'LIMIT', 0, 100)) do drop(old) end
if redis.call('EXISTS', INDEX) == 0 then redis.call('DEL', BYTES) end -- the store evicted the index alone: its responses expire

drop(name)
redis.call('HSET', response_of(name), 'body', content)
redis.call('PEXPIRE', response_of(name), ttl_ms)
redis.call('ZADD', INDEX, now + ttl_ms, name)
redis.call('HSET', BYTES, name, #content)
local total = redis.call('HINCRBY', BYTES, 'total', #content)
while total > most_bytes or redis.call('ZCARD', INDEX) > most_responses do
  drop(redis.call('ZRANGE', INDEX, 0, 0)[1])
  total = tonumber(redis.call('HGET', BYTES, 'total'))
end
for _, key in ipairs({INDEX, BYTES}) do redis.call('PEXPIRE', key, math.max(ttl_ms, redis.call('PTTL', key))) end
return 1

-- name: response_drop
-- Deletes the response ARGV[2]. Returns 1, or 0 if there was none.
return drop(ARGV[2]) == 1 and once(1) or 0

-- name: responses_drop
-- Deletes at most ARGV[2] of a tenant's responses. Returns the number of responses left.
local names = redis.call('ZRANGE', INDEX, 0, ARGV[2] - 1)
for _, name in ipairs(names) do drop(name) end
local left = redis.call('ZCARD', INDEX)
if left == 0 then redis.call('DEL', BYTES) end
return left
