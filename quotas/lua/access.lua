-- Stands before reserve and extend, after levels.lua: whether a tenant and its key may be used.

-- Why its tenant or one above it may not, or nil.
local function barred_tenant(levels)
  for _, level in ipairs(levels) do
    if level.scope == 'tenant' or level.scope == 'parent' then
      if level.state ~= ACTIVE then return STATES[level.state] or 'deleted' end
    end
  end
end

-- Why a new request may not use them, or nil.
local function barred(levels, tenant, now)
  local reason = barred_tenant(levels)
  if reason then return reason end
  local key = levels[2]
  if not key or key.scope ~= 'key' then return nil end
  if key.state ~= ACTIVE or string.sub(key.card, CARD_BYTES + 1) ~= tenant then return 'revoked' end
  if key.number > 0 and key.number <= now then return 'expired' end
end
