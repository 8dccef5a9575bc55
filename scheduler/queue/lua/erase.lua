-- Drops what is left of a deleted tenant's jobs, a part of the queue's keys at a time. Called by RedisQueue.erase, for
-- gateways: with the cursor that the last call returned, until that is 0.
-- ARGV: clock, cursor, tenant, when it was deleted (epoch ms), until when events are dropped (epoch ms; 0: none).
-- Returns {cursor, jobs dropped}. Only ended jobs go: gateways end the others. Jobs that arrived after the deletion are of
-- another tenant of the same id.
local SCANNED = 512
local pattern = string.gsub(PREFIX, '[%*%?%[%]\\]', '\\%0') .. '*'
local found = call('SCAN', ARGV[2], 'MATCH', pattern, 'COUNT', SCANNED)
local tenant, deleted, until_ms, dropped = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), 0
for _, name in ipairs(found[2]) do
  local kind, id = string.match(string.sub(name, #PREFIX + 1), '^(%l+):(.*)$')
  if kind == 'job' then
    local job = load(id, {'state', 'tenant', 'arrived', 'n'})
    if job and job.state == 'ended' and job.tenant == tenant and job.arrived <= deleted then
      local keys = {name}
      for choice = 0, job.n - 1 do keys[choice + 2] = key('ids', id, choice) end
      call('DEL', unpack(keys)) -- at most 1 + n
      dropped = dropped + 1
    end
  elseif kind == 'events' and until_ms > 0 then
    call('XTRIM', name, 'MINID', string.format('%.0f', until_ms))
  end
end
return {found[1], dropped}
