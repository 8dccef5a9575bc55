-- Charges what is left of what a flight came to, releases the rest, writes the ledger: once. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 flight, 2 outcome, 3 '1' to give all back and count nothing, 4 prompt tokens, 5 cached tokens,
--          6 output tokens, 7 preemptions, 8 ms to remember that it is settled, 9 ledger entries kept, about
-- Returns  {1, now ms, how the levels stand then} the first time; {0} where it was settled before or is unknown (it is then
--          marked as settled)
local prefix, flight_id = KEYS[1], ARGV[1]
local flight_key, now = prefix .. 'flight:' .. flight_id, now_ms()

local function write_ledger(flight, day, prompt, output)
  local lane, model, key = flight[F_LANE], flight[F_MODEL], flight[F_KEY]
  local cached = math.min(tonumber(ARGV[5]), prompt)
  redis.call('XADD', prefix .. 'ledger:' .. flight[F_TENANT], 'MAXLEN', '~', ARGV[9], '*', 'entry',
    now .. '\t' .. flight_id .. '\t' .. key .. '\t' .. model .. '\t' .. lane .. '\t' .. prompt .. '\t' .. cached ..
    '\t' .. output .. '\t' .. ARGV[7] .. '\t' .. ARGV[2])
  local month, of_month = names_of(day)
  local usage = prefix .. 'usage:' .. flight[F_TENANT] .. ':' .. month .. '-' .. of_month
  local group = lane .. '\t' .. model .. '\t' .. key
  local sums = redis.call('HGET', usage, group) or NO_USAGE
  local of_requests, of_prompt, of_cached, of_output = struct.unpack(USAGE, sums)
  redis.call('HSET', usage, group, struct.pack(USAGE, of_requests + 1, of_prompt + prompt, of_cached + cached,
    of_output + output))
end

local record = redis.call('GET', flight_key)
if record == SETTLED then return {0} end
if not record then
  redis.call('SET', flight_key, SETTLED, 'PX', ARGV[8])
  return {0}
end
local flight = unpack_flight(record)
local levels = levels_of(prefix, flight, now)
-- What extend has charged was published: it stands, whatever a caller that knows less says now.
local charged = flight[F_CHARGED_INPUT] + flight[F_CHARGED_OUTPUT] - flight[F_CREDIT_INPUT] - flight[F_CREDIT_OUTPUT]
local refund = ARGV[3] == '1' and charged == 0
local prompt = math.max(tonumber(ARGV[4]), flight[F_CHARGED_INPUT])
local output = math.max(tonumber(ARGV[6]), flight[F_CHARGED_OUTPUT])
local in_due, out_due = 0, 0
if not refund then
  in_due, out_due = unpaid(prefix, flight, prompt - flight[F_CHARGED_INPUT], output - flight[F_CHARGED_OUTPUT], now)
end
for _, level in ipairs(levels) do
  hold(level, -1, -held_input(flight), -held_output(flight))
  if refund then
    minute_uncount(level, flight[F_SLICE])
  else
    charge(level, in_due, out_due)
  end
  if flight[F_IS_PAUSED] == 1 then redis.call('ZREM', paused_key(level), flight_id) end
end
if not refund then
  write_ledger(flight, levels[1].figures[DAY], prompt - flight[F_CREDIT_INPUT], output - flight[F_CREDIT_OUTPUT])
end
if refund and flight[F_ONCE] ~= '' then redis.call('ZREM', prefix .. 'runs:' .. flight[F_ONCE], flight_id) end
write_levels(prefix, levels, flight_key, SETTLED)
redis.call('PEXPIRE', flight_key, ARGV[8])
redis.call('ZREM', prefix .. 'leases', flight_id)
return tell({1, now}, levels)
