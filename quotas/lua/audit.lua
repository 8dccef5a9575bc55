-- Stands before the scripts of what the audit log tells of, after clock.lua: their last argument is the entry that goes
-- with the change (quotas/audit.py), '' for none. It is taken away here: each script counts its own from the first.
local ENTRY, OUTBOX, MOST_WAITING = table.remove(ARGV), KEYS[1] .. 'audit', 1000

-- What does not get to the log stops the changes that it would tell of: no entry is ever dropped.
if ENTRY ~= '' and redis.call('LLEN', OUTBOX) >= MOST_WAITING then return 'unheard' end

-- To be called where something is changed.
local function note()
  if ENTRY ~= '' then redis.call('RPUSH', OUTBOX, string.format('%.0f ', now_ms()) .. ENTRY) end
end
