-- Batches: owner and progress. An owner holds a batch under a lease, and each take has a number, the epoch. An owner
-- that has lost its lease has an old epoch, so that its calls change nothing.

-- name: shared
-- Precedes every script of this folder. KEYS[1]: prefix of all keys of a root, with its hash tag.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Return the key of a batch, and whether the caller still owns it. ARGV: 1 batch, 2 owner, 3 epoch.
local function owned_batch()
  local record = KEYS[1] .. 'batch:' .. ARGV[1]
  local held = redis.call('HMGET', record, 'owner', 'epoch')
  return record, held[1] == ARGV[2] and held[2] == ARGV[3]
end

-- Count a batch's unfinished tokens against its tenant and key.
local function enqueue(batch, tenant, key, tokens)
  for _, level in ipairs({'tenant:' .. tenant, 'key:' .. key}) do
    if tonumber(tokens) > 0 then
      redis.call('HSET', KEYS[1] .. 'enqueued:' .. level, batch, tokens)
    else
      redis.call('HDEL', KEYS[1] .. 'enqueued:' .. level, batch)
    end
  end
end

-- name: batch_create
-- Stores a new batch without an owner.
-- ARGV     1 batch, 2 tenant, 3 key, 4 doc, 5 creation time, ms, 6 its tokens, 7 the tenant's limit of enqueued tokens
--          or -1, 8 the key's, 9 most open batches of a tenant, 10 its input file, 11 least expiry of that file, ms
-- Returns  {'ok'}, or without any write: {'tenant', tokens enqueued}, {'key', tokens enqueued}, {'open', batches}
local tenant, key = ARGV[2], ARGV[3]
if redis.call('EXISTS', KEYS[1] .. 'batch:' .. ARGV[1]) == 1 then return {'ok'} end
local open = redis.call('HLEN', KEYS[1] .. 'enqueued:tenant:' .. tenant)
if open >= tonumber(ARGV[9]) then return {'open', open} end
for place, level in ipairs({'tenant', 'key'}) do
  local limit, sum, enqueued = tonumber(ARGV[6 + place]), 0, KEYS[1] .. 'enqueued:' .. level .. ':' .. ARGV[1 + place]
  for _, tokens in ipairs(redis.call('HVALS', enqueued)) do sum = sum + tokens end -- at most the open batches
  if limit >= 0 and sum + ARGV[6] > limit then return {level, sum} end
end
redis.call('HSET', KEYS[1] .. 'batch:' .. ARGV[1], 'tenant', tenant, 'key', key, 'doc', ARGV[4], 'epoch', 0, 'owner', '')
redis.call('ZADD', KEYS[1] .. 'batches:' .. tenant, ARGV[5], ARGV[1])
redis.call('ZADD', KEYS[1] .. 'open', ARGV[5], ARGV[1]) -- free at once; the oldest is taken first
redis.call('ZADD', KEYS[1] .. 'expiring', 'XX', 'GT', ARGV[11], ARGV[10])
enqueue(ARGV[1], tenant, key, ARGV[6])
return {'ok'}

-- name: batch_take
-- Makes the caller the owner of a batch without an owner or with an expired lease.
-- ARGV     1 owner, 2 lease ms, 3 name of this call, then batches that it cannot run
-- Returns  {batch, epoch, doc, progress or false, cancelling or false}, or {open batches} if none is free; a repetition
--          of the owner's last call returns the same batch
local now, open, others, last = now_ms(), KEYS[1] .. 'open', {}, KEYS[1] .. 'take:' .. ARGV[1]
local function reply(batch, epoch)
  local found = redis.call('HMGET', KEYS[1] .. 'batch:' .. batch, 'doc', 'progress', 'cancelling')
  return {batch, epoch, found[1], found[2], found[3]}
end

local call, taken, taken_epoch = string.match(redis.call('GET', last) or '', '^(%S+) (%S+) (%d+)$')
if call == ARGV[3] then return reply(taken, tonumber(taken_epoch)) end
for at = 4, #ARGV do others[ARGV[at]] = true end
local batch
for _, free in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', now, 'LIMIT', 0, #ARGV - 2)) do
  if not others[free] then
    batch = free
    break
  end
end
if not batch then
  local last = redis.call('ZREVRANGE', open, 0, 0, 'WITHSCORES')
  if last[2] and tonumber(last[2]) > now + 10 * ARGV[2] then redis.call('ZADD', open, now + ARGV[2], last[1]) end
  return {redis.call('ZCARD', open)}
end
local record = KEYS[1] .. 'batch:' .. batch
local epoch = redis.call('HINCRBY', record, 'epoch', 1)
redis.call('HSET', record, 'owner', ARGV[1])
redis.call('ZADD', open, now + ARGV[2], batch)
redis.call('SET', last, ARGV[3] .. ' ' .. batch .. ' ' .. epoch, 'PX', math.max(1, ARGV[2]))
return reply(batch, epoch)

-- name: batch_renew
-- Extends an owner's lease.
-- ARGV     1 batch, 2 owner, 3 epoch, 4 lease ms; 0 gives it back, 5 ms for which nobody may take it then
-- Returns  {1, when cancellation was requested, ms, or ''}, {0} if the owner no longer holds it
local lease = tonumber(ARGV[4])
local record, is_owner = owned_batch()
local held = redis.call('HMGET', record, 'owner', 'epoch', 'cancelling')
if lease == 0 and held[1] == '' and held[2] == ARGV[3] then return {1, held[3] or ''} end -- a repetition
if not is_owner then return {0} end
redis.call('ZADD', KEYS[1] .. 'open', 'XX', now_ms() + (lease > 0 and lease or tonumber(ARGV[5])), ARGV[1])
if lease == 0 then redis.call('HSET', record, 'owner', '') end
return {1, held[3] or ''}

-- name: batch_save
-- Saves a batch's progress.
-- ARGV     1 batch, 2 owner, 3 epoch, 4 doc, 5 progress, 6 tokens of its unfinished lines
-- Returns  1, or 0 if the owner no longer holds it
local record, is_owner = owned_batch()
if not is_owner then return 0 end
redis.call('HSET', record, 'doc', ARGV[4], 'progress', ARGV[5])
local whose = redis.call('HMGET', record, 'tenant', 'key')
enqueue(ARGV[1], whose[1], whose[2], math.max(1, tonumber(ARGV[6]))) -- at least 1: `enqueued` lists every open batch
return 1

-- name: batch_finish
-- Ends a batch and adds its complete output files.
-- ARGV     1 batch, 2 owner, 3 epoch, 4 doc, 5 expiry, ms, 6 now, ms, then for each of its files: id, doc, bytes,
--          expiry, ms
-- Returns  1, or 0 if the owner no longer holds it
local batch, record, is_owner = ARGV[1], owned_batch()
if not redis.call('ZSCORE', KEYS[1] .. 'open', batch) and redis.call('HGET', record, 'epoch') == ARGV[3] then
  return 1 -- a repetition
end
if not is_owner then return 0 end
local whose = redis.call('HMGET', record, 'tenant', 'key')
for at = 7, #ARGV, 4 do
  local file = KEYS[1] .. 'file:' .. ARGV[at]
  if redis.call('EXISTS', file) == 0 then
    redis.call('HSET', file, 'tenant', whose[1], 'doc', ARGV[at + 1], 'bytes', ARGV[at + 2])
    redis.call('ZADD', KEYS[1] .. 'files:' .. whose[1], ARGV[6], ARGV[at])
    redis.call('INCRBY', KEYS[1] .. 'bytes:' .. whose[1], ARGV[at + 2])
    redis.call('ZADD', KEYS[1] .. 'expiring', ARGV[at + 3], ARGV[at])
  end
end
redis.call('HSET', record, 'doc', ARGV[4], 'owner', '')
redis.call('HDEL', record, 'progress')
redis.call('ZREM', KEYS[1] .. 'open', batch)
enqueue(batch, whose[1], whose[2], 0)
redis.call('ZADD', KEYS[1] .. 'expiring', ARGV[5], batch)
return 1

-- name: batch_cancel
-- Requests a batch's cancellation by its owner.
-- ARGV     1 batch
-- Returns  when cancellation was first requested, ms; false if the batch has ended
if not redis.call('ZSCORE', KEYS[1] .. 'open', ARGV[1]) then return false end
redis.call('HSETNX', KEYS[1] .. 'batch:' .. ARGV[1], 'cancelling', now_ms())
if redis.call('HGET', KEYS[1] .. 'batch:' .. ARGV[1], 'owner') == '' then
  redis.call('ZADD', KEYS[1] .. 'open', 'XX', 0, ARGV[1]) -- a batch that waits for its turn is taken at once, to end
end
return tonumber(redis.call('HGET', KEYS[1] .. 'batch:' .. ARGV[1], 'cancelling'))

-- name: batches_open
-- Returns the open batches of a root, in pages.
-- ARGV     1 cursor, '0' for the first page
-- Returns  {cursor, '0' on the last page; doc, cancelling or false, owner or '' without a lease, tokens of its
--          unfinished lines, ...}: about 64, at most 128. A batch may appear in two pages
local scanned, now = redis.call('ZSCAN', KEYS[1] .. 'open', ARGV[1], 'COUNT', 64), now_ms()
local found, open = {scanned[1]}, scanned[2]
for at = 1, #open, 2 do
  local known = redis.call('HMGET', KEYS[1] .. 'batch:' .. open[at], 'tenant', 'doc', 'cancelling', 'owner')
  if known[1] then
    local tokens = redis.call('HGET', KEYS[1] .. 'enqueued:tenant:' .. known[1], open[at])
    local owner = tonumber(open[at + 1]) > now and known[4] or ''
    for _, field in ipairs({known[2], known[3], owner, tokens or '0'}) do found[#found + 1] = field end
  end
end
return found

-- name: batch_drop
-- Deletes a batch, ended or not; its owner then no longer holds it.
-- ARGV     1 batch, 2 account of its tenant; '': as stored
local record = KEYS[1] .. 'batch:' .. ARGV[1]
local known = redis.call('HMGET', record, 'tenant', 'key')
local tenant, key = ARGV[2] ~= '' and ARGV[2] or known[1], known[2]
redis.call('ZREM', KEYS[1] .. 'open', ARGV[1])
redis.call('ZREM', KEYS[1] .. 'expiring', ARGV[1])
if tenant then
  redis.call('ZREM', KEYS[1] .. 'batches:' .. tenant, ARGV[1])
  redis.call('HDEL', KEYS[1] .. 'enqueued:tenant:' .. tenant, ARGV[1])
end
if key then redis.call('HDEL', KEYS[1] .. 'enqueued:key:' .. key, ARGV[1]) end
redis.call('DEL', record)
