-- Stands before the scripts whose changes the audit log records, after clock.lua and once.lua. Their last argument, behind the
-- one of once.lua, is the entry that goes with the change (quotas/audit.py), '' for none. It is removed here: each script
-- counts its own arguments from the first.
local ENTRY, OUTBOX, MOST_WAITING = table.remove(ARGV), KEYS[1] .. 'audit', 1000

-- While the log does not take entries, changes that need one are refused: no entry is ever dropped.
if ENTRY ~= '' and redis.call('LLEN', OUTBOX) >= MOST_WAITING then return 'unheard' end

-- Ends a script that has changed something, with its reply.
local function changed(reply)
  if ENTRY ~= '' then redis.call('RPUSH', OUTBOX, string.format('%.0f ', now_ms()) .. ENTRY) end
  return once(reply)
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
