-- Stands before reserve and statuses: whose limits a request must fit, as {scope, id, tenant}: whose they are, under
-- which id limits and figures are kept, and in whose zone its days begin.

-- A tenant's record as far as a request needs it.
local function tenant_of(prefix, id)
  local found = redis.call('HMGET', prefix .. 'tenant:' .. id, 'state', 'by', 'parents', 'zone')
  return {id = id, state = found[1] or 'deleted', by = found[2] and cjson.decode(found[2]) or {},
    parents = found[3] and cjson.decode(found[3]) or {}, zone = found[4]}
end

-- The tenant's, the key's, those of the model and lane, and those of all tenants above.
local function levels_of(tenant, key, model, lane)
  local levels = {{'tenant', 'tenant:' .. tenant.id, tenant.id}}
  if key ~= '' then levels[2] = {'key', 'key:' .. key, tenant.id} end
  for _, by in ipairs(tenant.by) do
    if (by[1] == '' or by[1] == model) and (by[2] == '' or by[2] == lane) then
      levels[#levels + 1] = {'model_lane', 'by:' .. tenant.id .. ':' .. by[2] .. ':' .. by[1], tenant.id}
    end
  end
  for _, parent in ipairs(tenant.parents) do levels[#levels + 1] = {'parent', 'tenant:' .. parent, parent} end
  return levels
end
