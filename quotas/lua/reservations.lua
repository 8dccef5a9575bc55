-- The life of a reservation: reserve, extend while it runs, settle at its end. `book` records one that already runs,
-- `statuses` only reads.

-- name: reserve
-- Holds the tokens of one request against every limit of every level, all or nothing. Returns {'granted', output tokens per choice
-- held, the most per choice, numbers of the shadow rules that would refuse, now ms, the levels' figures}, or without a change:
-- {'denied', number of the rule, requested, retry ms or -1, 1 if it can never fit, now ms, the level's figures}, {'access', reason},
-- {'settled'}.
local prefix, reservation_id, tenant, key, model, lane = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local input, longest_prompt, prompts, ceiling, is_stated = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9]), ARGV[10]
local quantum, lease_ms, once, once_until_ms = tonumber(ARGV[11]), ARGV[12], ARGV[13], tonumber(ARGV[14])
-- What it resumes from: output tokens, the part of finished choices, choices that resume, and tokens of the longest of these.
local begun, ended, going, longest = tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17]), tonumber(ARGV[18])
local is_batch, priced = ARGV[19], ARGV[20]
local reservation_key, now = prefix .. 'reservation:' .. reservation_id, now_ms()

local known = redis.call('GET', reservation_key)
if is_settled(known) then return {'settled'} end
if known then
  local reservation = unpack_reservation(known)
  return with_figures({'granted', reservation[F_CHOICE], reservation[F_CEILING], reservation[F_SHADOWED], now}, levels_of(prefix, reservation, now))
end
local levels, others = open_request(prefix, tenant, key, model, lane, now)
local reason = barred(levels, tenant, now)
if reason then return {'access', reason} end

if is_batch == '1' then for_batch(levels) end
find_paused(prefix, levels, now)
local in_paid, out_paid = 0, 0
if begun > 0 and once ~= '' then in_paid, out_paid = paid_for(prefix, once, now) end
in_paid, out_paid = math.min(in_paid, input), math.min(out_paid, begun)
local lag = going * longest - (begun - ended)
local ask = {requests = 1, input = input - in_paid, prompt = longest_prompt, ceiling = ceiling,
  choices = going, stated = is_stated == '1', start = longest, extra = lag + begun - out_paid, choice = 0, output = 0}
local prices = {}
priced = prices_for(prefix, once, priced, now)
prices.input, prices.cached, prices.output = struct.unpack(PRICES, priced)
size(levels, ask, quantum, prices)
local denied, shadowed = refusal(levels, ask, now, prices)
if denied then
  local reply = {'denied', denied.rule.number, denied.amount, denied.retry, denied.never and 1 or 0, now}
  return with_figures(reply, {denied.level})
end

for _, level in ipairs(levels) do admit(level, ask.input, ask.output, ask.spend) end
local granted = ask.start + ask.choice
write_levels(prefix, levels, reservation_key, struct.pack(RESERVATION, input, out_paid + ask.output, in_paid, out_paid, granted,
  ask.ceiling, prompts, levels[1].current, 0, 0, 0, 0, tenant, key, model, lane, shadowed, others, in_paid, out_paid,
  once, once_until_ms, is_batch, prices.input, prices.cached, prices.output, 0, 0, 0))
note_run(prefix, once, once_until_ms, reservation_id, priced, now)
redis.call('ZADD', prefix .. 'leases', now + lease_ms, reservation_id)
return with_figures({'granted', granted, ask.ceiling, shadowed, now}, levels)

-- name: extend
-- Charges a running reservation's progress and holds more for it; nothing more if its tenant was suspended or deleted. Returns
-- {output tokens held since the start; the limit that leaves nothing now, or ''; 1 if it can never leave more; when to ask again,
-- ms; 1 if the reservation is paused}, or false if the reservation is over.
local BARRED_MS = 1000 -- its gateway is about to be notified
local prefix, reservation_id = KEYS[1], ARGV[1]
-- Output tokens: published so far, held according to the caller, and the maximum.
local published, known_held, asked_most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local unit, quantum, used_up = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
-- Tokens of the prompts that have produced output, and of the output of finished choices.
local prompt_tokens, ended = tonumber(ARGV[8]), tonumber(ARGV[9])
local reservation_key, now = prefix .. 'reservation:' .. reservation_id, now_ms()
local record = redis.call('GET', reservation_key)
if not record or is_settled(record) then return false end
local reservation = unpack_reservation(record)
local levels = levels_of(prefix, reservation, now)
find_paused(prefix, levels, now)

local input = math.min(held_input(reservation), math.max(0, prompt_tokens - reservation[F_CHARGED_INPUT]))
local output = math.min(held_output(reservation), math.max(0, published - reservation[F_CHARGED_OUTPUT]))
usage_sums.turn_day(prefix, reservation, levels[1].figures[DAY])
local held_before = held_spend(reservation)
local in_due, out_due = unpaid(prefix, reservation, input, output, now)
reservation[F_CHARGED_INPUT], reservation[F_CHARGED_OUTPUT] = reservation[F_CHARGED_INPUT] + input, reservation[F_CHARGED_OUTPUT] + output
local spend = usage_sums.open_spend(reservation, in_due, out_due)
for _, level in ipairs(levels) do
  hold(level, 0, -input, -output, held_spend(reservation) - held_before)
  charge(level, in_due, out_due, spend)
end

local whole = portion(levels, quantum, unit) * unit
local most = math.min(asked_most, ended + ceiling_of(levels) * unit)
local is_barred = barred_tenant(levels) ~= nil
-- More is held than the caller knows of, since that reply was lost: return it again, and grant nothing more.
local is_repeat = reservation[F_OUTPUT] > known_held
local wanted = (is_barred or is_repeat) and 0 or math.min(known_held + whole, most) - reservation[F_OUTPUT]
local was_paused = reservation[F_IS_PAUSED] == 1
local found = {tokens = 0, limited_by = '', is_spent = false, retry = is_barred and BARRED_MS or 0, is_full = false}
if wanted >= unit then
  local place = was_paused and {reservation[F_SINCE], reservation_id}
  local prices = {input = reservation[F_INPUT_PRICE], output = reservation[F_OUTPUT_PRICE]}
  local own = {output = held_output(reservation), spend = held_spend(reservation)}
  found = more(levels, {tokens = wanted - wanted % unit, unit = unit, prices = prices}, own, place, now)
elseif not is_repeat and most < asked_most and most - reservation[F_OUTPUT] < unit then
  found.limited_by, found.is_spent = 'max_output_tokens', true
end
reservation[F_OUTPUT], reservation[F_SERVED], reservation[F_ASKED] = reservation[F_OUTPUT] + found.tokens, reservation[F_SERVED] + found.tokens, now

local is_stuck = used_up and found.tokens == 0 and not found.is_spent and found.is_full
local is_over = not (is_stuck or is_repeat) and (found.is_spent or reservation[F_SERVED] >= whole or wanted < unit)
if is_stuck and not was_paused then reservation[F_IS_PAUSED], reservation[F_SINCE], reservation[F_SERVED] = 1, now, 0 end
if is_over then reservation[F_IS_PAUSED] = 0 end
for _, level in ipairs(levels) do
  hold(level, 0, 0, found.tokens, found.tokens * reservation[F_OUTPUT_PRICE])
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

-- name: settle
-- Charges the rest of a reservation's usage, releases what it holds and writes the ledger, once. Returns {1, now ms, the levels'
-- figures} to the call that settles it and its repeats; {0} if another call did, or if it is unknown (it is then marked as settled).
local prefix, reservation_id, kept_ms, call_name = KEYS[1], ARGV[1], ARGV[8], ARGV[12]
local ended = {outcome = ARGV[2], is_refund = ARGV[3] == '1', prompt = tonumber(ARGV[4]), cached = tonumber(ARGV[5]),
  output = tonumber(ARGV[6]), preemptions = ARGV[7], ledger_bytes = ARGV[9], gpu_us = ARGV[10], kv_block_ms = ARGV[11]}
local reservation_key, now = prefix .. 'reservation:' .. reservation_id, now_ms()

local record = redis.call('GET', reservation_key)
if is_settled(record) then
  local settled_by, tenant, key, others = struct.unpack(SETTLED_FIELDS, record .. '\0\0\0\0', #SETTLED + 1)
  if settled_by ~= call_name then return {0} end
  return with_figures({1, now}, levels_at(prefix, tenant, key, others, now))
end
if not record then
  redis.call('SET', reservation_key, SETTLED, 'PX', kept_ms)
  return {0}
end
local reservation = unpack_reservation(record)
local levels = levels_of(prefix, reservation, now)
local sums = usage_sums.finish(prefix, reservation_id, reservation, levels, ended, now)
if sums then usage_sums.add(prefix, reservation, levels[1].figures[DAY], unpack(sums)) end -- at most seven
write_levels(prefix, levels, reservation_key, SETTLED .. struct.pack(SETTLED_FIELDS, call_name, reservation[F_TENANT],
  reservation[F_KEY], reservation[F_OTHERS]))
redis.call('PEXPIRE', reservation_key, kept_ms)
redis.call('ZREM', prefix .. 'leases', reservation_id)
return with_figures({1, now}, levels)

-- name: book
-- Records a reservation that already runs, holding nothing and ignoring limits; settle charges it. Returns 1 if it is open now; 0
-- without a change if it was settled, or its tenant was deleted.
local prefix, reservation_id, tenant, key, model, lane = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local prompts, lease_ms, once, once_until_ms = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local is_batch, priced = ARGV[10], ARGV[11]
local reservation_key, now = prefix .. 'reservation:' .. reservation_id, now_ms()
local known = redis.call('GET', reservation_key)
if known then return is_settled(known) and 0 or 1 end
local levels, others = open_request(prefix, tenant, key, model, lane, now)
if not levels[1].is_known or levels[1].state == DELETED then return 0 end

if is_batch == '1' then for_batch(levels) end
for _, level in ipairs(levels) do admit(level, 0, 0, 0) end
priced = prices_for(prefix, once, priced, now)
local in_price, cached_price, out_price = struct.unpack(PRICES, priced)
write_levels(prefix, levels, reservation_key, struct.pack(RESERVATION, 0, 0, 0, 0, 0, 0, prompts, levels[1].current, 0, 0, 0, 0,
  tenant, key, model, lane, '', others, 0, 0, once, once_until_ms, is_batch, in_price, cached_price, out_price, 0, 0, 0))
note_run(prefix, once, once_until_ms, reservation_id, priced, now)
redis.call('ZADD', prefix .. 'leases', now + lease_ms, reservation_id)
return 1

-- name: statuses
-- Reads every limit of a tenant, of one of its keys, of a model and lane, and of the tenants above ('' for none); writes nothing.
-- Returns {now ms, the levels' figures}.
local tenant, key, model, lane, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], now_ms()
return with_figures({now}, (open_request(KEYS[1], tenant, key, model, lane, now)))
