-- A gateway's heartbeat, and the exchange of reports. For gateways.

-- name: gateway_alive
-- A gateway's heartbeat; after GATEWAY_LEASES leases without one, its jobs are cancelled. Called by RedisQueue.
-- ARGV: clock, gateway. Returns nothing.
call('ZADD', key('gateways'), NOW + GATEWAY_LEASES * LEASE_MS, ARGV[2])
call('PEXPIRE', key('events', ARGV[2]), RECORD_TTL_MS)

-- name: exchange_reports
-- Publish a gateway's report and return those of the others (scheduler/admission/open_requests.py). Called by
-- RedisQueue.exchange_reports.
-- ARGV: clock, gateway, serial, its report ('': none), then for each lane, in rank order, us of work refused since the
--   last report that might have been in time; a repeat (same serial) does not count them again.
-- Returns for each lane the fraction of all time recently requested there, in millionths; then for each other gateway
--   its report and the report's age in ms.
local FORMAT = '<d' -- time of the report; the report follows
local gateway, serial, gateways, answer, refused = ARGV[2], ARGV[3], key('doors'), {}, 0
if ARGV[4] == '' then
  call('HDEL', gateways, gateway)
else
  call('HSET', gateways, gateway, struct.pack(FORMAT, NOW) .. ARGV[4])
  call('PEXPIRE', gateways, GATEWAY_LEASES * LEASE_MS)
end
for level in ipairs(LANES) do refused = refused + tonumber(ARGV[4 + level]) end
if refused > 0 and call('HGET', key('refusals'), gateway) ~= serial then
  for level, lane in ipairs(LANES) do ask(lane.name, tonumber(ARGV[4 + level])) end
  call('HSET', key('refusals'), gateway, serial)
  call('PEXPIRE', key('refusals'), GATEWAY_LEASES * LEASE_MS)
end
for level, lane in ipairs(LANES) do answer[level] = part_of(lane.name) end
local flat = call('HGETALL', gateways) -- at most the gateways with requests here
for i = 1, #flat, 2 do
  local at, first = struct.unpack(FORMAT, flat[i + 1])
  if NOW - at >= GATEWAY_LEASES * LEASE_MS then
    call('HDEL', gateways, flat[i])
  elseif flat[i] ~= gateway then
    answer[#answer + 1], answer[#answer + 2] = flat[i + 1]:sub(first), math.max(0, NOW - at)
  end
end
return answer
