-- Stands before the scripts of what the audit log tells of, after clock.lua: their last argument is the entry that goes
-- with the change (quotas/audit.py), '' for none. It is taken away here: each script counts its own from the first.
local ENTRY, OUTBOX, MOST_WAITING = table.remove(ARGV), KEYS[1] .. 'audit', 1000

-- What does not get to the log stops the changes that it would tell of: no entry is ever dropped.
if ENTRY ~= '' and redis.call('LLEN', OUTBOX) >= MOST_WAITING then return 'unheard' end

-- To be called where something is changed.
local function note()
  if ENTRY ~= '' then redis.call('RPUSH', OUTBOX, string.format('%.0f ', now_ms()) .. ENTRY) end
end

-- What is kept of a level that is no more.
local KEPT_MS = 70 * 86400000

-- Drops a level's card; its figures, which running requests may still change, go later.
local function drop_card(prefix, level)
  redis.call('DEL', prefix .. 'card:' .. level)
  redis.call('PEXPIRE', prefix .. 'figures:' .. level, KEPT_MS)
end

-- How a key ends.

-- Writes its state and when it expires ('' = never) into its record and its card. Returns its new version.
local function end_key(prefix, id, state, expires_ms)
  local record, card = prefix .. 'key:' .. id, prefix .. 'card:key:' .. id
  redis.call('HSET', record, 'state', state, 'expires_ms', expires_ms)
  redis.call('SET', card, struct.pack('<dd', state == 'active' and 1 or 4, tonumber(expires_ms) or 0) ..
    string.sub(redis.call('GET', card), 17))
  return redis.call('HINCRBY', record, 'version', 1)
end
