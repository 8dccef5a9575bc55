-- Stands before scripts that remove levels.

-- How long the figures of a level that no longer exists are kept.
local KEPT_MS = 70 * 86400000

-- Drops a level's card; its figures, which running requests may still change, expire later.
local function drop_card(prefix, level)
  redis.call('DEL', prefix .. 'card:' .. level)
  redis.call('PEXPIRE', prefix .. 'figures:' .. level, KEPT_MS)
end
