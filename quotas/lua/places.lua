-- Stands before the budget's functions, after levels.lua: whose limits a request must fit, under which id limits and
-- figures are kept, and in whose zone its days begin.

-- Opens places {scope, id, tenant} as of now, after `levels`: the tenant's own is always the first.
local function open_levels(prefix, places, now, levels)
  local names = {}
  for number, place in ipairs(places) do
    names[2 * number - 1], names[2 * number] = prefix .. 'card:' .. place[2], prefix .. 'figures:' .. place[2]
  end
  local stored = redis.call('MGET', unpack(names))
  for number, place in ipairs(places) do
    local level = open_level(prefix, place, stored[2 * number - 1], names[2 * number], stored[2 * number])
    levels[#levels + 1] = level
    slide(level, now)
    local figures, zone = level.figures, place[1] == 'parent' and level.number or levels[1].number
    if figures[ZONE] ~= zone or now < figures[DAY_BEGINS] or now >= figures[DAY_ENDS] then
      turn_day(prefix, level, place[3], zone, now)
    end
  end
  return levels
end

-- The places of a tenant and of its key, where it has one.
local function places_of(tenant, key)
  return {{'tenant', 'tenant:' .. tenant, tenant}, key ~= '' and {'key', 'key:' .. key, tenant} or nil}
end

-- Those of a request's model and lane, and of all tenants above, as the opened tenant's card has them; '' or as JSON.
local function others_of(tenant, id, model, lane)
  if #tenant.card <= CARD_BYTES then return {}, '' end
  local named, places = cjson.decode(string.sub(tenant.card, CARD_BYTES + 1)), {}
  for _, by in ipairs(named[1]) do
    if (by[1] == '' or by[1] == model) and (by[2] == '' or by[2] == lane) then
      places[#places + 1] = {'model_lane', 'by:' .. id .. ':' .. by[2] .. ':' .. by[1], id}
    end
  end
  for _, parent in ipairs(named[2]) do places[#places + 1] = {'parent', 'tenant:' .. parent, parent} end
  return places, #places > 0 and cjson.encode(places) or ''
end
