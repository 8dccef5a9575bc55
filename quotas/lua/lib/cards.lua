-- Precedes scripts that remove levels.
local KEPT_MS = 70 * 86400000

-- Deletes a level's card. Its figures, which running requests may still change, expire later.
local function drop_card(prefix, level)
  redis.call('DEL', prefix .. 'card:' .. level)
  redis.call('PEXPIRE', prefix .. 'figures:' .. level, KEPT_MS)
end
