-- Erasure of deleted tenants' data. For gateways.

-- name: erase
-- Drop the records of a deleted tenant's ended jobs. Called by RedisQueue.erase for pages of `ended:<tenant>`.
-- ARGV: clock, tenant, when it was deleted (epoch ms), jobs (PER_CALL at most).
-- Returns how many of the jobs stay: those that arrived after the deletion belong to a new tenant with the same id.
local ended, deleted, kept = key('ended', ARGV[2]), tonumber(ARGV[3]), 0
for i = 4, #ARGV do
  local job = load(ARGV[i], {'state', 'tenant', 'arrived', 'n'})
  if not job then
    call('ZREM', ended, ARGV[i]) -- its record has expired
  elseif job.arrived > deleted then
    kept = kept + 1
  else
    drop(job)
  end
end
return kept

-- name: trim_streams
-- Drop the entries of processes' streams up to a time. Called by RedisQueue.erase.
-- ARGV: clock, end of the period (epoch ms), kind of the streams, processes (PER_CALL at most). Returns nothing.
for i = 4, #ARGV do call('XTRIM', key(ARGV[3], ARGV[i]), 'MINID', string.format('%.0f', ARGV[2])) end
