-- Gives a tenant's id to a root organisation, if nobody has it or its owner can make the tenant no more. Called by
-- TenantIds: the index of all tenants is the one arbiter, since each root's keys have a hash tag of their own.
-- KEYS[1]  the index: zset of `<tenant> <root>`, all with score 0
-- ARGV     1 tenant, 2 root that asks for it, 3 the claim that was barred (tenant_bar.lua), '' for none
-- Returns  {root, number of its claim}: who has the id now
local index, tenant, root = KEYS[1], ARGV[1], ARGV[2]
local claims = 'fl:claims:{' .. index .. '}'
local entry = redis.call('ZRANGEBYLEX', index, '[' .. tenant .. ' ', '(' .. tenant .. ' \x7f', 'LIMIT', 0, 1)[1]
local owner = entry and string.sub(entry, #tenant + 2)
local claim = redis.call('HGET', claims, tenant) or '0'
if owner == root or (owner and ARGV[3] ~= claim) then return {owner, tonumber(claim)} end
if owner then
  redis.call('ZREM', index, entry)
  claim = redis.call('HINCRBY', claims, tenant, 1)
end
redis.call('ZADD', index, 0, tenant .. ' ' .. root)
return {root, tonumber(claim)}
