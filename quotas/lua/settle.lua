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
  let_go(level, holds(flight, 'input'), holds(flight, 'output'))
  level.live.requests = level.live.requests - 1
  write_held(prefix, level)
  if flight.since then redis.call('ZREM', prefix .. 'paused:' .. level.id, flight_id) end
end

local function write_ledger(flight, today, prompt, output)
  redis.call('XADD', prefix .. 'ledger:' .. flight.tenant, 'MAXLEN', '~', ARGV[9], '*', 'at_ms', now,
    'flight', flight_id, 'key', flight.key, 'model', flight.model, 'lane', flight.lane, 'prompt_tokens', prompt,
    'cached_tokens', ARGV[5], 'output_tokens', output, 'preemptions', ARGV[7], 'outcome', ARGV[2])
  local usage = prefix .. 'usage:' .. flight.tenant .. ':' .. today.month .. '-' .. today.day
  local group = flight.lane .. '\t' .. flight.model .. '\t' .. flight.key .. '\t'
  local names = {group .. 'requests', group .. 'prompt_tokens', group .. 'cached_tokens', group .. 'output_tokens'}
  local sums = redis.call('HMGET', usage, unpack(names))
  for i, more in ipairs({1, prompt, ARGV[5], output}) do sums[i] = (tonumber(sums[i]) or 0) + more end
  redis.call('HSET', usage, names[1], sums[1], names[2], sums[2], names[3], sums[3], names[4], sums[4])
end

local flight, state = flight_of(flight_key)
if state == 'settled' then return {0} end
local levels = flight and open_levels(prefix, flight.levels, now, {}, true)
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
