-- The ledger's sums.

-- name: usage
-- Reads a tenant's sums of days and rolled-up months (ARGV[3…], as YYYY-MM-DD or YYYY-MM) in pages; writes nothing. `cursor` is a
-- position in the first span, '0' at its beginning. Returns {cursor, spans}: for each span read {{lane TAB model TAB key, the
-- figures of USAGE}, …}; a cursor other than '0' continues the last of these spans. A group may be in two pages. A page has some
-- 256 groups plus one HSCAN's result: 64, or a whole hash that the store keeps compact (512).
local account, cursor = ARGV[1], ARGV[2]
local MOST, STEP = 256, 64
local size, spans = 0, {}
for i = 3, #ARGV do
  local scanned, groups = redis.call('HSCAN', KEYS[1] .. 'usage:' .. account .. ':' .. ARGV[i], cursor, 'COUNT', STEP), {}
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
-- Moves at most 256 of a tenant's day sums (of ARGV[7…], as YYYY-MM-DD) into their month's, each exactly once under concurrent
-- calls. `before` and `last` are the last days rolled up before and after this roll-up, `expected` and `after` its state
-- (`rolling`) before and after this call; '' stands for none. A repeated call is recognised by `after`. Returns 2 if sums are left
-- to move, 1 if the days are rolled up, or 0 without a change if another caller rolls up.
local account, before, last, expected, after, kept_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local MOST = 256
local usage, marker = KEYS[1] .. 'usage:' .. account .. ':', KEYS[1] .. 'rolled:' .. account
local rolling = KEYS[1] .. 'rolling:' .. account
local rolled, known = redis.call('GET', marker) or '', redis.call('GET', rolling) or ''
if rolled == last then return 1 end
if rolled ~= before then return 0 end
if known == after then return 2 end
if known ~= expected then return 0 end
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
  if #sums > 0 then redis.call('PEXPIRE', month, kept_ms) end
  left = left - #sums / 2
  if left == 0 then
    redis.call('SET', rolling, after)
    return 2
  end
end
redis.call('SET', marker, last)
redis.call('DEL', rolling)
return 1
