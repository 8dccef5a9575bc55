-- Prelude: counters of tenants and shares of lanes (scheduler/queue/take_order.py states the rules). After `base`.
local OWED, IS_BACKLOGGED, SPENT = {}, {}, {}

-- Is anybody waiting in this lane?
local function is_backlogged(lane)
  if IS_BACKLOGGED[lane] == nil then IS_BACKLOGGED[lane] = call('EXISTS', key('waiting', lane)) == 1 end
  return IS_BACKLOGGED[lane]
end

-- Weighted tokens by which a lane is behind its share floor; kept here until flush_shares.
local function owed_to(lane)
  if not OWED[lane] then OWED[lane] = tonumber(call('HGET', key('owed'), lane) or 0) end
  return OWED[lane]
end

-- Count tokens, and what they are by weight, for a tenant and a lane, and what that makes the lanes with a floor owed.
local function count(lane_name, tenant, tokens, service)
  local counter = tonumber(call('ZINCRBY', key('counters', lane_name), service, tenant))
  call('ZADD', key('backlog', lane_name), 'XX', counter, tenant)
  for _, lane in ipairs(LANES) do
    if lane.share_floor > 0 then
      local due = is_backlogged(lane.name) and lane.share_floor * tokens or 0
      local own = lane.name == lane_name and tokens or 0
      OWED[lane.name] = math.max(-OWED_LIMIT, math.min(OWED_LIMIT, owed_to(lane.name) + due - own))
    end
  end
  return counter
end

-- Charge a job's tenant for service (negative: a refund).
local function charge(job, tokens)
  if tokens ~= 0 then job.counter = count(job.lane, job.tenant, tokens, tokens / job.weight) end
end

-- Charge what many jobs of a tenant may add to: counted once, by flush_shares.
local function spend(job, tokens)
  if tokens == 0 then return end
  local name = key(job.lane, job.tenant)
  if not SPENT[name] then
    SPENT[name] = {lane = job.lane, tenant = job.tenant, tokens = 0, service = 0}
    SPENT[#SPENT + 1] = SPENT[name]
  end
  SPENT[name].tokens, SPENT[name].service = SPENT[name].tokens + tokens, SPENT[name].service + tokens / job.weight
end

-- To call once at the end of every script that charges.
local function flush_shares()
  for _, each in ipairs(SPENT) do count(each.lane, each.tenant, each.tokens, each.service) end
  for lane, tokens in pairs(OWED) do call('HSET', key('owed'), lane, tokens) end
end
