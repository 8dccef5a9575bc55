-- Stands before tenant_put and tenant_delete: what is kept of a level that is no more.
local KEPT_MS = 70 * 86400000

-- Drops a level's card; its figures, which running requests may still change, go later.
local function drop_card(prefix, level)
  redis.call('DEL', prefix .. 'card:' .. level)
  redis.call('PEXPIRE', prefix .. 'figures:' .. level, KEPT_MS)
end
