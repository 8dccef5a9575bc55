-- Escrow: rights moved to a gateway and back, and the recovery of a dead gateway's.

-- name: transfer
-- Takes back a pool's rights, records what its gateway did with them, and grants new ones, in one step. The pool is made by its call
-- 1 and closed by a call after which it has no rights. Returns {1, requests, input and output tokens granted, now ms, the levels'
-- figures}, also to a repeat of the last call; or without a change {0, number of the last call that was made}, if the pool is
-- not as the caller left it: its gateway was taken for dead, or the store lost a call.
local prefix, name, tenant, key, model, lane = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local call, first, share = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local wanted = {requests = tonumber(ARGV[9]), input = tonumber(ARGV[10]), output = tonumber(ARGV[11])}
local valid_ms, lease_ms, kept_ms, ledger_bytes = tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14], ARGV[15]
-- Each is {reservation, its outcome or '' while it is open, prices, …}: see redis_store.py.
local entries, now = cmsgpack.unpack(ARGV[16]), now_ms()

local names = {escrow.key(prefix, name)}
for number, entry in ipairs(entries) do names[number + 1] = prefix .. 'reservation:' .. entry[1] end
local stored = redis.call('MGET', unpack(names)) -- at most the pool and 64 reservations
local pool = stored[1] and escrow.unpack(stored[1])
local last = pool and pool[P_CALL] or 0
local is_repeat = pool and call == last and pool[P_STATE] ~= REAPED
if not is_repeat and (call ~= last + 1 or (pool and pool[P_STATE] ~= OPEN)) then return {0, last} end

local levels = open_levels(prefix, places_of(tenant, key), now, {})
local places = other_places(levels[1].card, tenant, model, lane)
local others = #places > 0 and cjson.encode(places) or ''
pool = pool or {OPEN, 0, first, 0, 0, 0, 0, tenant, key, model, lane, others}
if pool[P_OTHERS] ~= '' then open_levels(prefix, cjson.decode(pool[P_OTHERS]), now, levels) end
if is_repeat then return with_figures({1, pool[P_REQUESTS], pool[P_INPUT], pool[P_OUTPUT], now}, levels) end
local is_open = pool[P_OTHERS] == others and not barred(levels, tenant, now)

escrow.count(levels, pool, -1)
local values, leases, over, records, sums, last_closed = {}, {}, {}, {}, {0, 0, 0, 0, 0, 0, 0}, nil
for number, entry in ipairs(entries) do
  local id, outcome, record = entry[1], entry[2], stored[number + 1]
  local prices = {entry[3], entry[4], entry[5]}
  local reservation = record and not is_settled(record) and unpack_reservation(record)
  if is_settled(record) then
    -- another gateway settled it
  elseif outcome == '' then
    reservation = reservation or escrow.enter(pool, levels, prices)
    escrow.advance(prefix, reservation, levels,
      {input = entry[6], output = entry[7], charged_input = entry[8], charged_output = entry[9], choice = entry[10], ceiling = entry[11]})
    values[#values + 1], values[#values + 2] = names[number + 1], pack_reservation(reservation)
    leases[#leases + 1], leases[#leases + 2] = now + lease_ms, id
  elseif reservation or entry[6] == 0 then -- a refund of what was never recorded needs nothing
    reservation = reservation or escrow.enter(pool, levels, prices)
    local ended = {outcome = outcome, is_refund = entry[6] == 1, prompt = entry[7], cached = entry[8], output = entry[9],
      preemptions = entry[10], gpu_us = entry[11], kv_block_ms = entry[12], ledger_bytes = ledger_bytes}
    local charged = usage_sums.finish(prefix, id, reservation, levels, ended, now)
    for place = 1, charged and USAGE_FIGURES or 0 do sums[place] = sums[place] + charged[place] end
    last_closed = charged and reservation or last_closed
    if record then over[#over + 1], records[#records + 1] = id, names[number + 1] end
  end
end
if last_closed then usage_sums.add(prefix, last_closed, levels[1].figures[DAY], unpack(sums, 1, USAGE_FIGURES)) end

pool[P_CALL], pool[P_FIRST] = call, first
escrow.grant(prefix, pool, levels, is_open and wanted or {requests = 0, input = 0, output = 0}, share, now)
escrow.count(levels, pool, 1)
if pool[P_REQUESTS] == 0 then pool[P_STATE] = CLOSED end
values[#values + 1], values[#values + 2] = names[1], escrow.pack(pool)
write_values(prefix, levels, values)
if #leases > 0 then redis.call('ZADD', prefix .. 'leases', unpack(leases)) end -- at most 64
if #over > 0 then
  redis.call('ZREM', prefix .. 'leases', unpack(over)) -- at most 64
  redis.call('DEL', unpack(records)) -- at most 64
end
if pool[P_STATE] == CLOSED then
  redis.call('PEXPIRE', names[1], kept_ms)
  redis.call('ZREM', prefix .. 'escrows', name)
else
  redis.call('ZADD', prefix .. 'escrows', now + valid_ms, name)
end
return with_figures({1, pool[P_REQUESTS], pool[P_INPUT], pool[P_OUTPUT], now}, levels)

-- name: escrow_reap
-- Recovers the rights of a dead gateway, in two calls a lease apart. The first one records every reservation that the gateway may
-- have made since its last report, holding nothing and with a lease that is over: the reaper of leases settles each by its jobs.
-- The second one, once all of them are settled, takes back the rights. Does nothing if the pool was used since `until_ms`.
local prefix, name, until_ms, lease_ms, kept_ms = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local escrow_key, escrows, now = escrow.key(KEYS[1], name), KEYS[1] .. 'escrows', now_ms()
local record, score = redis.call('GET', escrow_key), tonumber(redis.call('ZSCORE', escrows, name))
if not record or not score then
  redis.call('ZREM', escrows, name) -- the store lost the record
  return
end
if score > until_ms then return end
local pool = escrow.unpack(record)
local ids, names = {}, {}
for number = pool[P_FIRST], pool[P_FIRST] + pool[P_REQUESTS] - 1 do
  ids[#ids + 1] = name .. string.format('%08x', number)
  names[#names + 1] = prefix .. 'reservation:' .. ids[#ids]
end
local known = redis.call('MGET', unpack(names)) -- at most 64
local levels = levels_at(prefix, pool[P_TENANT], pool[P_KEY], pool[P_OTHERS], now)
local values, leases = {}, {}
if pool[P_STATE] == OPEN then
  for number, id in ipairs(ids) do
    if not known[number] then
      values[#values + 1] = names[number]
      values[#values + 1] = pack_reservation(escrow.enter(pool, levels, {0, 0, 0}))
      leases[#leases + 1], leases[#leases + 2] = now, id
    end
  end
  pool[P_STATE] = REAPED
else
  for _, reservation in ipairs(known) do
    if reservation and not is_settled(reservation) then
      redis.call('ZADD', escrows, now, name)
      return
    end
  end
  escrow.count(levels, pool, -1)
  pool[P_REQUESTS] = 0
end
values[#values + 1], values[#values + 2] = escrow_key, escrow.pack(pool)
write_values(prefix, levels, values)
if #leases > 0 then redis.call('ZADD', prefix .. 'leases', unpack(leases)) end -- at most 64
if pool[P_REQUESTS] == 0 then
  redis.call('PEXPIRE', escrow_key, kept_ms)
  redis.call('ZREM', escrows, name)
else
  redis.call('ZADD', escrows, now, name)
end
