-- Precedes the scripts whose changes are audited, after once.lua. Their last argument, before the one of once.lua, is the audit
-- entry (quotas/audit.py), '' for none. It is removed here, so that the script sees only its own.
local ENTRY, OUTBOX, MOST_WAITING = table.remove(ARGV), KEYS[1] .. 'audit', 1000

-- Audited changes are refused while entries cannot be moved to the log: no entry is ever dropped.
if ENTRY ~= '' and redis.call('LLEN', OUTBOX) >= MOST_WAITING then return 'outbox_full' end

-- Ends a script after a change, with its reply.
local function changed(reply)
  if ENTRY ~= '' then redis.call('RPUSH', OUTBOX, string.format('%.0f ', now_ms()) .. ENTRY) end
  return once(reply)
end

-- Writes a key's state and expiry ('' = never) to its record and its card. Returns its new version.
local function end_key(prefix, id, state, expires_ms)
  local record, card = prefix .. 'key:' .. id, prefix .. 'card:key:' .. id
  redis.call('HSET', record, 'state', state, 'expires_ms', expires_ms)
  redis.call('SET', card, struct.pack('<dd', state == 'active' and 1 or 4, tonumber(expires_ms) or 0) ..
    string.sub(redis.call('GET', card), 17))
  return redis.call('HINCRBY', record, 'version', 1)
end
