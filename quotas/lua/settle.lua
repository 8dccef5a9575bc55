-- Charges what is left of what a flight came to, releases the rest, writes the ledger: once. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 outcome, 3 '1' to give all back and count nothing, 4 prompt tokens, 5 cached tokens,
--          6 output tokens, 7 preemptions, 8 ms to remember that it is settled, 9 ledger entries kept, about
-- Returns  {1, the statuses then} the first time; {0} where it was settled before or is unknown (it is then
--          marked as settled)
local prefix, flight_id, refund = KEYS[1], ARGV[1], ARGV[3] == '1'
local flight_key = prefix .. 'flight:' .. flight_id
local now = now_ms()

local function release(level, flight)
  change_held(prefix, level, 0 - holds(flight, 'input'), 0 - holds(flight, 'output'))
  local held = prefix .. 'reserved:' .. level.id
  level.live.requests = redis.call('HINCRBY', held, 'requests', -1)
  if level.live.requests <= 0 then
    -- Without a flight in the air nothing can be reserved: whatever a lost write left behind ends here.
    redis.call('DEL', held)
    level.live.requests, level.held.input, level.held.output = 0, 0, 0
  end
  if flight.since then redis.call('ZREM', prefix .. 'paused:' .. level.id, flight_id) end
end

local function write_ledger(flight, today, prompt, output)
  redis.call('XADD', prefix .. 'ledger:' .. flight.tenant, 'MAXLEN', '~', ARGV[9], '*', 'at_ms', now,
    'flight', flight_id, 'key', flight.key, 'model', flight.model, 'lane', flight.lane, 'prompt_tokens', prompt,
    'cached_tokens', ARGV[5], 'output_tokens', output, 'preemptions', ARGV[7], 'outcome', ARGV[2])
  local usage = prefix .. 'usage:' .. flight.tenant .. ':' .. today.month .. '-' .. today.day
  local group = flight.lane .. '\t' .. flight.model .. '\t' .. flight.key .. '\t'
  redis.call('HINCRBY', usage, group .. 'requests', 1)
  redis.call('HINCRBY', usage, group .. 'prompt_tokens', prompt)
  redis.call('HINCRBY', usage, group .. 'cached_tokens', ARGV[5])
  redis.call('HINCRBY', usage, group .. 'output_tokens', output)
end

local flight, state = flight_of(flight_key)
if state == 'settled' then return {0} end
local levels = flight and open_levels(prefix, flight.levels, now)
if flight then
  -- What extend has charged was published: it stands, whatever a caller that knows less says now.
  refund = refund and flight.charged_input + flight.charged_output == 0
  local prompt = math.max(tonumber(ARGV[4]), flight.charged_input)
  local output = math.max(tonumber(ARGV[6]), flight.charged_output)
  for _, level in ipairs(levels) do
    release(level, flight)
    if refund then
      minute_add(level.minute, tonumber(flight.slice), -1, 0, 0)
    else
      charge(prefix, level, prompt - flight.charged_input, output - flight.charged_output)
    end
  end
  if not refund then write_ledger(flight, levels[1].today, prompt, output) end
  redis.call('ZREM', prefix .. 'leases', flight_id)
  redis.call('DEL', flight_key)
end
redis.call('HSET', flight_key, 'state', 'settled')
redis.call('PEXPIRE', flight_key, ARGV[8])
if not flight then return {0} end
return {1, statuses(levels, now)}
