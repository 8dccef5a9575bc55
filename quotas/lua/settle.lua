-- Charges what is left of what a reservation came to, releases the rest, writes the ledger: once. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 reservation, 2 outcome, 3 '1' to give all back and count nothing, 4 prompt tokens, 5 cached tokens,
--          6 output tokens, 7 preemptions, 8 ms to remember that it is settled, 9 ledger entries kept, about
-- Returns  {1, now ms, how the levels stand then} the first time; {0} where it was settled before or is unknown (it is then
--          marked as settled)
local prefix, reservation_id = KEYS[1], ARGV[1]
local reservation_key, now = prefix .. 'reservation:' .. reservation_id, now_ms()

local function write_ledger(reservation, day, prompt, output)
  local lane, model, key = reservation[F_LANE], reservation[F_MODEL], reservation[F_KEY]
  local cached = math.min(tonumber(ARGV[5]), prompt)
  redis.call('XADD', prefix .. 'ledger:' .. reservation[F_TENANT], 'MAXLEN', '~', ARGV[9], '*', 'entry',
    now .. '\t' .. reservation_id .. '\t' .. key .. '\t' .. model .. '\t' .. lane .. '\t' .. prompt .. '\t' .. cached ..
    '\t' .. output .. '\t' .. ARGV[7] .. '\t' .. ARGV[2])
  local month, of_month = names_of(day)
  local usage = prefix .. 'usage:' .. reservation[F_TENANT] .. ':' .. month .. '-' .. of_month
  local group = lane .. '\t' .. model .. '\t' .. key
  local sums = redis.call('HGET', usage, group) or NO_USAGE
  local of_requests, of_prompt, of_cached, of_output = struct.unpack(USAGE, sums)
  redis.call('HSET', usage, group, struct.pack(USAGE, of_requests + 1, of_prompt + prompt, of_cached + cached,
    of_output + output))
end

local record = redis.call('GET', reservation_key)
if record == SETTLED then return {0} end
if not record then
  redis.call('SET', reservation_key, SETTLED, 'PX', ARGV[8])
  return {0}
end
local reservation = unpack_reservation(record)
local levels = levels_of(prefix, reservation, now)
-- What extend has charged was published: it stands, whatever a caller that knows less says now.
local charged = reservation[F_CHARGED_INPUT] + reservation[F_CHARGED_OUTPUT] - reservation[F_CREDIT_INPUT] - reservation[F_CREDIT_OUTPUT]
local refund = ARGV[3] == '1' and charged == 0
local prompt = math.max(tonumber(ARGV[4]), reservation[F_CHARGED_INPUT])
local output = math.max(tonumber(ARGV[6]), reservation[F_CHARGED_OUTPUT])
local in_due, out_due = 0, 0
if not refund then
  in_due, out_due = unpaid(prefix, reservation, prompt - reservation[F_CHARGED_INPUT], output - reservation[F_CHARGED_OUTPUT], now)
end
for _, level in ipairs(levels) do
  hold(level, -1, -held_input(reservation), -held_output(reservation))
  if refund then
    minute_uncount(level, reservation[F_SLICE])
  else
    charge(level, in_due, out_due)
  end
  if reservation[F_IS_PAUSED] == 1 then redis.call('ZREM', paused_key(level), reservation_id) end
end
if not refund then
  write_ledger(reservation, levels[1].figures[DAY], prompt - reservation[F_CREDIT_INPUT], output - reservation[F_CREDIT_OUTPUT])
end
if refund and reservation[F_ONCE] ~= '' then redis.call('ZREM', prefix .. 'runs:' .. reservation[F_ONCE], reservation_id) end
write_levels(prefix, levels, reservation_key, SETTLED)
redis.call('PEXPIRE', reservation_key, ARGV[8])
redis.call('ZREM', prefix .. 'leases', reservation_id)
return tell({1, now}, levels)
