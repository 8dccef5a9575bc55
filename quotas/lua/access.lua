-- Stands before reserve, after levels.lua: whether a tenant and its key may be used.

-- Why not, or nil.
local function barred(levels, tenant, now)
  for _, level in ipairs(levels) do
    if level.scope == 'tenant' or level.scope == 'parent' then
      if level.state ~= ACTIVE then return STATES[level.state] or 'deleted' end
    end
  end
  local key = levels[2]
  if not key or key.scope ~= 'key' then return nil end
  if key.state ~= ACTIVE or string.sub(key.card, CARD_BYTES + 1) ~= tenant then return 'revoked' end
  if key.number > 0 and key.number <= now then return 'expired' end
end
