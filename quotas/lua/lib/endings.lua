-- Precedes the budget's functions, after writes.lua: the end of a reservation, and its ledger entry.

-- Charges the rest of an open reservation in the tables of its levels, releases what it holds, and writes its ledger entry. `ended`
-- is {outcome, is_refund, prompt, cached, output, preemptions, gpu_us, kv_block_ms (the last three as text), ledger_bytes}. Returns
-- what `add` adds to the day's sums after `day`, or nil if nothing is charged.
function usage_sums.finish(prefix, reservation_id, reservation, levels, ended, now)
  -- What extend has charged was published and stays charged, even if this caller knows of less.
  local charged = reservation[F_CHARGED_INPUT] + reservation[F_CHARGED_OUTPUT] - reservation[F_CREDIT_INPUT] - reservation[F_CREDIT_OUTPUT]
  local refund = ended.is_refund and charged == 0
  local prompt = math.max(ended.prompt, reservation[F_CHARGED_INPUT])
  local output = math.max(ended.output, reservation[F_CHARGED_OUTPUT])
  local in_due, out_due, spend, cached, held = 0, 0, 0, 0, held_spend(reservation)
  if not refund then
    usage_sums.turn_day(prefix, reservation, levels[1].figures[DAY])
    in_due, out_due = unpaid(prefix, reservation, prompt - reservation[F_CHARGED_INPUT], output - reservation[F_CHARGED_OUTPUT], now)
    prompt, output = prompt - reservation[F_CREDIT_INPUT], output - reservation[F_CREDIT_OUTPUT]
    cached = math.min(ended.cached, prompt)
    spend = usage_sums.open_spend(reservation, in_due, out_due) +
      (prompt - cached) * (reservation[F_INPUT_PRICE] - reservation[F_CACHED_PRICE])
  end
  for _, level in ipairs(levels) do
    hold(level, -1, -held_input(reservation), -held_output(reservation), -held)
    if refund then
      if not level.is_batch then minute_uncount(level, reservation[F_SLICE], 1) end
    else
      charge(level, in_due, out_due, spend)
    end
    if reservation[F_IS_PAUSED] == 1 then redis.call('ZREM', level.prefix .. 'paused:' .. level.id, reservation_id) end
  end
  if not refund then return usage_sums.enter(prefix, reservation_id, reservation, ended, prompt, cached, output, now) end
  if reservation[F_ONCE] ~= '' then redis.call('ZREM', prefix .. 'runs:' .. reservation[F_ONCE], reservation_id) end
end

local ENTRY_BYTES = 16 -- the store's measured overhead per stream entry

-- Writes a ledger entry; returns as `finish`.
function usage_sums.enter(prefix, reservation_id, reservation, ended, prompt, cached, output, now)
  local lane, model, key = reservation[F_LANE], reservation[F_MODEL], reservation[F_KEY]
  local in_price, cached_price, out_price = reservation[F_INPUT_PRICE], reservation[F_CACHED_PRICE], reservation[F_OUTPUT_PRICE]
  local spend = (prompt - cached) * in_price + cached * cached_price + output * out_price
  local entry = now .. '\t' .. reservation_id .. '\t' .. key .. '\t' .. model .. '\t' .. lane .. '\t' .. prompt .. '\t' ..
    cached .. '\t' .. output .. '\t' .. ended.preemptions .. '\t' .. ended.outcome
  local ledger, costs = prefix .. 'ledger:' .. reservation[F_TENANT], nil
  if in_price + out_price > 0 or ended.gpu_us ~= '0' or ended.kv_block_ms ~= '0' then
    costs = string.format('%.0f\t%.0f\t%.0f\t%.0f\t', spend, in_price, cached_price, out_price) .. ended.gpu_us .. '\t' .. ended.kv_block_ms
  end
  local most = math.ceil(ended.ledger_bytes / (#entry + (costs and #costs or 0) + ENTRY_BYTES))
  if costs then
    redis.call('XADD', ledger, 'MAXLEN', '~', most, '*', 'entry', entry, 'costs', costs)
  else
    redis.call('XADD', ledger, 'MAXLEN', '~', most, '*', 'entry', entry)
  end
  local once, past_input, past_output = reservation[F_ONCE], reservation[PAST.input], reservation[PAST.output]
  if once ~= '' then redis.call('HINCRBY', prefix .. 'paid:' .. once, 'cached', cached) end
  -- All runs under one idempotency key count as one request.
  local requests = (once == '' or redis.call('HSETNX', prefix .. 'paid:' .. once, 'counted', 1) == 1) and 1 or 0
  return {requests, prompt - past_input, cached, output - past_output,
    spend - usage_sums.open_spend(reservation, past_input, past_output), tonumber(ended.gpu_us), tonumber(ended.kv_block_ms)}
end
