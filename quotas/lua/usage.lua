-- The ledger's sums.

-- name: usage
-- Reads a tenant's sums of days and rolled-up months, in pages; writes nothing. Called by Ledger.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 cursor in the first span, '0' at its beginning, 3… days as YYYY-MM-DD, months as YYYY-MM
-- Returns  {cursor, spans}: for each span read {{lane TAB model TAB key, requests, prompt, cached and output tokens, money in
--          nano-units, microseconds of accelerators, milliseconds of KV blocks}, …}; a cursor other than '0' continues the
--          last of these spans. A group may be in two pages. A page has some 256 groups plus one HSCAN's result: 64, or a
--          whole hash that the store keeps compact (512)
local MOST, STEP = 256, 64
local cursor, size, spans = ARGV[2], 0, {}
for i = 3, #ARGV do
  local scanned, groups = redis.call('HSCAN', KEYS[1] .. 'usage:' .. ARGV[1] .. ':' .. ARGV[i], cursor, 'COUNT', STEP), {}
  local sums = scanned[2]
  for field = 1, #sums, 2 do
    local requests, prompt, cached, output, spend, gpu, kv = unpack_usage(sums[field + 1])
    groups[#groups + 1] = {sums[field], requests, prompt, cached, output, spend, gpu, kv}
  end
  cursor, size, spans[#spans + 1] = scanned[1], size + #groups, groups
  if cursor ~= '0' or size >= MOST then break end
end
return {cursor, spans}

-- name: usage_roll
-- Moves at most 256 of a tenant's day sums into their month's, each exactly once under concurrent calls. Called by RollUp
-- until all of these days are rolled up.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 last day rolled up before, '' for none, 3 last day rolled up after this, 4 expected state of the
--          roll-up under way (`rolling`), '' for none, 5 its state after this call, 6 ms for which a month is kept from
--          now, 7… days as YYYY-MM-DD
-- Returns  2 if sums are left to move, 1 if the days are rolled up; 0 without a change if another caller rolls up. A
--          repeated call is recognised by its fifth argument
local MOST = 256
local usage, marker = KEYS[1] .. 'usage:' .. ARGV[1] .. ':', KEYS[1] .. 'rolled:' .. ARGV[1]
local rolling = KEYS[1] .. 'rolling:' .. ARGV[1]
local rolled, known = redis.call('GET', marker) or '', redis.call('GET', rolling) or ''
if rolled == ARGV[3] then return 1 end
if rolled ~= ARGV[2] then return 0 end
if known == ARGV[5] then return 2 end
if known ~= ARGV[4] then return 0 end
local left = MOST
for i = 7, #ARGV do
  local day, month = usage .. ARGV[i], usage .. string.sub(ARGV[i], 1, 7)
  local sums = redis.call('HRANDFIELD', day, left, 'WITHVALUES')
  for field = 1, #sums, 2 do
    local added, stored = {unpack_usage(sums[field + 1])}, {unpack_usage(redis.call('HGET', month, sums[field]))}
    for place = 1, USAGE_FIGURES do stored[place] = stored[place] + added[place] end
    redis.call('HSET', month, sums[field], struct.pack(USAGE, unpack(stored, 1, USAGE_FIGURES)))
    redis.call('HDEL', day, sums[field])
  end
  if #sums > 0 then redis.call('PEXPIRE', month, ARGV[6]) end
  left = left - #sums / 2
  if left == 0 then
    redis.call('SET', rolling, ARGV[5])
    return 2
  end
end
redis.call('SET', marker, ARGV[3])
redis.call('DEL', rolling)
return 1
