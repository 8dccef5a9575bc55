-- Forgets a root that nobody has enlisted since. Called by Roots.
-- KEYS[1]  the roots by when they were last enlisted, ms
-- ARGV     1 root, 2 since when, ms
-- Returns  1, or 0 where somebody has
local enlisted = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not enlisted or tonumber(enlisted) > tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
