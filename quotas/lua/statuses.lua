-- Every limit of a tenant, of one of its keys, of a model and lane and of the tenants above as it stands; writes
-- nothing. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 key or '', 3 model or '', 4 lane or ''
-- Returns  {now ms, how the levels stand}
local now = now_ms()
local levels = open_levels(KEYS[1], places_of(ARGV[1], ARGV[2]), now, {})
local others = others_of(levels[1], ARGV[1], ARGV[3], ARGV[4])
if #others > 0 then open_levels(KEYS[1], others, now, levels) end
return tell({now}, levels)
