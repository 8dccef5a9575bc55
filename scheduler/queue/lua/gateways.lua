-- A gateway's heartbeat, and what gateways tell each other. For gateways.

-- name: gateway_alive
-- A gateway's heartbeat: without it for GATEWAY_LEASES leases, its jobs are cancelled. Called by RedisQueue.
-- ARGV: clock, gateway. Returns nothing.
call('ZADD', key('gateways'), NOW + GATEWAY_LEASES * LEASE_MS, ARGV[2])
call('PEXPIRE', key('events', ARGV[2]), RECORD_TTL_MS)

-- name: exchange_reports
-- What a gateway says to the others and hears of them (scheduler/admission/open_requests.py). Called by
-- RedisQueue.exchange_reports.
-- ARGV: clock, gateway, serial, what it says ('': nothing), then for each lane, in order of rank: us of work that it refused since it
--   said so last and that might have been in time; a repeat (same serial) does not count them again.
-- Returns for each lane the part of all time that was asked of it of late, in millionths; then for each other
--   gateway what it said and how many ms ago.
local FORMAT = '<d' -- when it was said; what follows
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
local flat = call('HGETALL', gateways) -- at most the gateways that have requests here
for i = 1, #flat, 2 do
  local at, first = struct.unpack(FORMAT, flat[i + 1])
  if NOW - at >= GATEWAY_LEASES * LEASE_MS then
    call('HDEL', gateways, flat[i])
  elseif flat[i] ~= gateway then
    answer[#answer + 1], answer[#answer + 2] = flat[i + 1]:sub(first), math.max(0, NOW - at)
  end
end
return answer
