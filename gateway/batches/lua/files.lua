-- Metadata of files: tenant, size, expiry. Their contents are in the storage (storage.py).

-- name: file_open
-- Reserves a place for an upload.
-- ARGV     1 tenant, 2 file, 3 upload time, ms, 4 expiry if it is never kept, ms, 5 most files of a tenant,
--          6 most bytes of a tenant
-- Returns  {'ok'}, or without any write: {'files', their number}, {'bytes', their number}
local tenant, file = ARGV[1], ARGV[2]
local files = KEYS[1] .. 'files:' .. tenant
if redis.call('EXISTS', KEYS[1] .. 'file:' .. file) == 1 then return {'ok'} end
local count = redis.call('ZCARD', files)
if count >= tonumber(ARGV[5]) then return {'files', count} end
local bytes = tonumber(redis.call('GET', KEYS[1] .. 'bytes:' .. tenant)) or 0
if bytes >= tonumber(ARGV[6]) then return {'bytes', bytes} end
redis.call('HSET', KEYS[1] .. 'file:' .. file, 'tenant', tenant, 'bytes', 0)
redis.call('ZADD', files, ARGV[3], file)
redis.call('ZADD', KEYS[1] .. 'expiring', ARGV[4], file)
return {'ok'}

-- name: file_keep
-- Stores a complete upload.
-- ARGV     1 tenant, 2 file, 3 doc, 4 its bytes, 5 expiry, ms, 6 most bytes of a tenant
-- Returns  {'ok'}, or without any write: {'bytes', their number}, {'gone'}: the upload took too long
local tenant, file = ARGV[1], ARGV[2]
local record = KEYS[1] .. 'file:' .. file
if redis.call('HGET', record, 'tenant') ~= tenant then return {'gone'} end
if redis.call('HEXISTS', record, 'doc') == 1 then return {'ok'} end
local bytes = tonumber(redis.call('GET', KEYS[1] .. 'bytes:' .. tenant)) or 0
if bytes + ARGV[4] > tonumber(ARGV[6]) then return {'bytes', bytes} end
redis.call('HSET', record, 'doc', ARGV[3], 'bytes', ARGV[4])
redis.call('INCRBY', KEYS[1] .. 'bytes:' .. tenant, ARGV[4])
redis.call('ZADD', KEYS[1] .. 'expiring', ARGV[5], file)
return {'ok'}

-- name: file_drop
-- Deletes a file's metadata, once its contents are deleted.
-- ARGV     1 file
local record = KEYS[1] .. 'file:' .. ARGV[1]
local known = redis.call('HMGET', record, 'tenant', 'bytes')
redis.call('ZREM', KEYS[1] .. 'expiring', ARGV[1])
if not known[1] then return end
redis.call('DEL', record)
redis.call('ZREM', KEYS[1] .. 'files:' .. known[1], ARGV[1])
if redis.call('DECRBY', KEYS[1] .. 'bytes:' .. known[1], known[2]) <= 0 then
  redis.call('DEL', KEYS[1] .. 'bytes:' .. known[1])
end

-- name: documents
-- Returns documents of a tenant's files or batches in order of creation.
-- ARGV     1 tenant, 2 'file' or 'batch', 3 the id to start after, or '', 4 most documents, 5 '1' for newest first
-- Returns  {doc or false, cancelling or false, ...}, or false if the id to start after is not known
local of, kind, after = KEYS[1] .. (ARGV[2] == 'file' and 'files:' or 'batches:') .. ARGV[1], ARGV[2], ARGV[3]
local is_newest_first, from = ARGV[5] == '1', 0
if after ~= '' then
  local rank = redis.call(is_newest_first and 'ZREVRANK' or 'ZRANK', of, after)
  if not rank then return false end
  from = rank + 1
end
local found = {}
for _, id in ipairs(redis.call(is_newest_first and 'ZREVRANGE' or 'ZRANGE', of, from, from + ARGV[4] - 1)) do
  local fields = redis.call('HMGET', KEYS[1] .. kind .. ':' .. id, 'doc', 'cancelling')
  found[#found + 1], found[#found + 2] = fields[1], fields[2]
end
return found
