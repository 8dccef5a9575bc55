-- Stands before what keeps the records of requests that carry an idempotency key: where each stands, and how it goes.
-- KEYS[1] is the prefix of the root, ARGV[1] the API key's public id.
local KEPT_MS = 86400000
local INDEX = KEYS[1] .. 'idems:' .. ARGV[1]
local ANSWERS = KEYS[1] .. 'answers:' .. ARGV[1]
local KEPT = KEYS[1] .. 'kept:' .. ARGV[1]

local function record_of(name)
  return KEYS[1] .. 'idem:' .. ARGV[1] .. ':' .. name
end

local PRINT = 16 -- characters of a request's fingerprint that tell it from others under its key

-- What its runs share is named by this, and where they are listed.
local function once_of(name, print)
  local once = ARGV[1] .. ':' .. name .. ':' .. string.sub(print, 1, PRINT)
  return once, KEYS[1] .. 'runs:' .. once
end

-- Forgets what a request answered; that it ended stays known.
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
