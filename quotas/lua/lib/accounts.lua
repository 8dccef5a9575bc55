-- Stands before scripts that know tenants by their accounts.

-- A tenant's id and incarnation, from its account (keyspace.py).
local function parts_of(account) return string.match(account, '^([^~]*)~?(.*)$') end

local function account_of(tenant, incarnation) return incarnation == '' and tenant or tenant .. '~' .. incarnation end

-- Whether the tenant of this account exists: neither deleted nor replaced by a later one of its id.
local function is_alive(prefix, account)
  local tenant, incarnation = parts_of(account)
  local found = redis.call('HMGET', prefix .. 'tenant:' .. tenant, 'state', 'incarnation')
  return found[1] and found[1] ~= 'deleted' and (found[2] or '') == incarnation
end
