-- Every limit of a tenant, of one of its keys, of a model and lane and of the tenants above as it stands; writes
-- nothing. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 key or '', 3 model or '', 4 lane or ''
-- Returns  the statuses as one JSON list
local now, tenant = now_ms(), tenant_of(KEYS[1], ARGV[1])
local calendars = {[tenant.id] = calendar_of(tenant.zone, now)}
return statuses(open_levels(KEYS[1], levels_of(tenant, ARGV[2], ARGV[3], ARGV[4]), now, calendars), now)
