-- How full each lane is. Called by RedisQueue.depths. ARGV: clock.
-- Returns for each lane, in order of rank: jobs that wait, ms that the oldest has waited.
local answer = {}
for _, lane in ipairs(LANES) do
  local oldest = call('ZRANGE', key('waiting', lane.name), 0, 0, 'WITHSCORES')[2]
  answer[#answer + 1] = call('ZCARD', key('waiting', lane.name))
  answer[#answer + 1] = oldest and NOW - tonumber(oldest) or 0
end
return answer
