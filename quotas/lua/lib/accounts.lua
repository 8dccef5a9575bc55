-- Precedes scripts that identify tenants by their accounts (keyspace.py), or remove levels.
local KEPT_MS = 70 * 86400000

-- Returns the id and the incarnation.
local function parts_of(account) return string.match(account, '^([^~]*)~?(.*)$') end

local function account_of(tenant, incarnation) return incarnation == '' and tenant or tenant .. '~' .. incarnation end

-- Returns whether the account's tenant exists: neither deleted nor replaced by a later one with its id.
local function is_alive(prefix, account)
  local tenant, incarnation = parts_of(account)
  local found = redis.call('HMGET', prefix .. 'tenant:' .. tenant, 'state', 'incarnation')
  return found[1] and found[1] ~= 'deleted' and (found[2] or '') == incarnation
end

-- Deletes a level's card. Its figures, which running requests may still change, expire later.
local function drop_card(prefix, level)
  redis.call('DEL', prefix .. 'card:' .. level)
  redis.call('PEXPIRE', prefix .. 'figures:' .. level, KEPT_MS)
end
