-- Charges what a running reservation has come to so far, and holds more for it before it needs that: nothing more where its
-- tenant was suspended or deleted. Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 reservation, 2 output tokens published so far, 3 output tokens that the caller knows to be held, from first to
--          last, 4 the most that it may come to, 5 choices that go on, 6 quantum per choice, 7 '1' where one of them has
--          used up what it has, 8 tokens of the prompts that have brought any, 9 published tokens of the choices that
--          go on no more
-- Returns  {output tokens held, from first to last; the limit that leaves nothing now, or ''; 1 where no time brings
--          more; when to ask again, ms; 1 where the reservation is paused}, or false where it holds nothing
local BARRED_MS = 1000 -- its gateway is about to hear of it
local prefix, reservation_id = KEYS[1], ARGV[1]
local reservation_key, now = prefix .. 'reservation:' .. reservation_id, now_ms()
local record = redis.call('GET', reservation_key)
if not record or record == SETTLED then return false end
local reservation = unpack_reservation(record)
local levels = levels_of(prefix, reservation, now)
find_paused(prefix, levels, now)

local input = math.min(held_input(reservation), math.max(0, tonumber(ARGV[8]) - reservation[F_CHARGED_INPUT]))
local output = math.min(held_output(reservation), math.max(0, tonumber(ARGV[2]) - reservation[F_CHARGED_OUTPUT]))
local in_due, out_due = unpaid(prefix, reservation, input, output, now)
for _, level in ipairs(levels) do
  hold(level, 0, -input, -output)
  charge(level, in_due, out_due)
end
reservation[F_CHARGED_INPUT], reservation[F_CHARGED_OUTPUT] = reservation[F_CHARGED_INPUT] + input, reservation[F_CHARGED_OUTPUT] + output

local unit = tonumber(ARGV[5])
local whole = portion(levels, tonumber(ARGV[6]), unit) * unit
local asked_most = tonumber(ARGV[4])
local most = math.min(asked_most, tonumber(ARGV[9]) + ceiling_of(levels) * unit)
local is_barred = barred_tenant(levels) ~= nil
local wanted = is_barred and 0 or math.min(tonumber(ARGV[3]) + whole, most) - reservation[F_OUTPUT]
local was_paused = reservation[F_IS_PAUSED] == 1
local found = {tokens = 0, limited_by = '', is_spent = false, retry = is_barred and BARRED_MS or 0, is_full = false}
if wanted >= unit then
  local place = was_paused and {reservation[F_SINCE], reservation_id}
  found = more(levels, {tokens = wanted - wanted % unit, unit = unit}, held_output(reservation), place, now)
elseif most < asked_most and most - reservation[F_OUTPUT] < unit then
  found.limited_by, found.is_spent = 'max_output_tokens', true
end
reservation[F_OUTPUT], reservation[F_SERVED], reservation[F_ASKED] = reservation[F_OUTPUT] + found.tokens, reservation[F_SERVED] + found.tokens, now

local is_stuck = ARGV[7] == '1' and found.tokens == 0 and not found.is_spent and found.is_full
local is_over = not is_stuck and (found.is_spent or reservation[F_SERVED] >= whole or wanted < unit)
if is_stuck and not was_paused then reservation[F_IS_PAUSED], reservation[F_SINCE], reservation[F_SERVED] = 1, now, 0 end
if is_over then reservation[F_IS_PAUSED] = 0 end
for _, level in ipairs(levels) do
  hold(level, 0, 0, found.tokens)
  local paused = paused_key(level)
  if is_stuck and level.binds then
    level.figures[PAUSED] = 1
    redis.call('ZADD', paused, reservation[F_SINCE], reservation_id)
    redis.call('PEXPIRE', paused, 2 * MINUTE_MS + FORGOTTEN_MS)
  elseif was_paused and (is_stuck or is_over) then
    redis.call('ZREM', paused, reservation_id)
  end
end
write_levels(prefix, levels, reservation_key, pack_reservation(reservation))
return {reservation[F_OUTPUT], found.limited_by, found.is_spent and 1 or 0, found.retry, is_stuck and 1 or 0}
