-- Charges what a flight came to, releases the rest, writes the ledger: once. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 outcome, 3 '1' to give all back and count nothing, 4 prompt tokens, 5 cached tokens,
--          6 output tokens, 7 preemptions, 8 ms to remember that it is settled, 9 ledger entries kept, about
-- Returns  {1, the statuses then} the first time; {0} where it was settled before or is unknown (it is then
--          marked as settled)
local prefix, flight_id, refund = KEYS[1], ARGV[1], ARGV[3] == '1'
local flight_key = prefix .. 'flight:' .. flight_id
local now = now_ms()
local SPENT_DAYS = 70 -- a month's sums outlive it in every zone

local function release(held, flight)
  redis.call('HINCRBY', held, 'input', 0 - flight.prompt)
  redis.call('HINCRBY', held, 'output', 0 - flight.output)
  -- Without a flight in the air nothing can be reserved: whatever a lost write left behind ends here.
  if redis.call('HINCRBY', held, 'requests', -1) <= 0 then redis.call('DEL', held) end
end

local function charge(id, today)
  local minute = open_minute(prefix .. 'minute:' .. id, now)
  minute_add(minute, minute.current, 0, tonumber(ARGV[4]), tonumber(ARGV[6]))
  local spent = prefix .. 'spent:' .. id .. ':' .. today.month
  redis.call('HINCRBY', spent, today.day, ARGV[4] + ARGV[6])
  redis.call('HINCRBY', spent, 'month', ARGV[4] + ARGV[6])
  redis.call('PEXPIRE', spent, SPENT_DAYS * DAY_MS)
end

local function write_ledger(flight, today)
  redis.call('XADD', prefix .. 'ledger:' .. flight.tenant, 'MAXLEN', '~', ARGV[9], '*', 'at_ms', now,
    'flight', flight_id, 'key', flight.key, 'model', flight.model, 'lane', flight.lane, 'prompt_tokens', ARGV[4],
    'cached_tokens', ARGV[5], 'output_tokens', ARGV[6], 'preemptions', ARGV[7], 'outcome', ARGV[2])
  local usage = prefix .. 'usage:' .. flight.tenant .. ':' .. today.month .. '-' .. today.day
  local group = flight.lane .. '\t' .. flight.model .. '\t' .. flight.key .. '\t'
  redis.call('HINCRBY', usage, group .. 'requests', 1)
  redis.call('HINCRBY', usage, group .. 'prompt_tokens', ARGV[4])
  redis.call('HINCRBY', usage, group .. 'cached_tokens', ARGV[5])
  redis.call('HINCRBY', usage, group .. 'output_tokens', ARGV[6])
end

local stored, flight = redis.call('HGETALL', flight_key), {}
for i = 1, #stored, 2 do flight[stored[i]] = stored[i + 1] end
if flight.state == 'settled' then return {0} end
if flight.state then
  local today = tenant_calendar(prefix, flight.tenant, now)
  for _, level in ipairs(cjson.decode(flight.levels)) do
    release(prefix .. 'reserved:' .. level[2], flight)
    local minute = refund and open_minute(prefix .. 'minute:' .. level[2], now)
    if refund then minute_add(minute, tonumber(flight.slice), -1, 0, 0) else charge(level[2], today) end
  end
  if not refund then write_ledger(flight, today) end
  redis.call('ZREM', prefix .. 'leases', flight_id)
  redis.call('DEL', flight_key)
end
redis.call('HSET', flight_key, 'state', 'settled')
redis.call('PEXPIRE', flight_key, ARGV[8])
if not flight.state then return {0} end
return {1, statuses(open_levels(prefix, flight.tenant, flight.levels, now), now)}
