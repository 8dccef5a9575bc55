-- The ledger's entries: export, which the audit log shares, and trimming.

-- name: ledger_unexported
-- Reads the unexported entries of the stream KEYS[1] .. ARGV[1], oldest first; ARGV[2] names the marks of its export, and ARGV[3] is
-- the most to read. Writes nothing. Returns {id of the last exported entry, number of the
-- entry before those returned here, entries trimmed before they were exported, the entries as in XRANGE}.
local ledger, marks, most, found = KEYS[1] .. ARGV[1], ARGV[2], ARGV[3], {}
local exported = redis.call('HMGET', marks, 'id', 'number')
local after, number = exported[1] or '0-0', tonumber(exported[2])
if redis.call('EXISTS', ledger) == 0 then return {after, number or 0, 0, {}} end
local info = redis.call('XINFO', 'STREAM', ledger)
for at = 1, #info, 2 do found[info[at]] = info[at + 1] end
local trimmed = found['entries-added'] - found['length']
if not number or number > found['entries-added'] then number = trimmed end -- the first export, or a new ledger
local lost = math.max(0, trimmed - number)
return {after, number + lost, lost, redis.call('XRANGE', ledger, '(' .. after, '+', 'COUNT', most)}

-- name: ledger_exported
-- Records that entries of the stream are exported, named as above. `number` is that of the last one. Repeatable.
local exported, before, last, number = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('EXISTS', KEYS[1] .. ARGV[1]) == 0 then return end -- it was erased
if (redis.call('HGET', exported, 'id') or '0-0') ~= before then return end
redis.call('HSET', exported, 'id', last, 'number', number)

-- name: ledger_trim
-- Drops an account's entries before a time; with '1', only exported ones.
local account, before_ms, only_exported = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
if only_exported then
  local exported = redis.call('HGET', KEYS[1] .. 'exported:' .. account, 'id')
  before_ms = math.min(before_ms, tonumber(string.match(exported or '0', '^%d+')))
end
redis.call('XTRIM', KEYS[1] .. 'ledger:' .. account, 'MINID', string.format('%.0f', before_ms))

-- name: export_write
-- Replaces the exporter's state KEYS[1] if it is the expected one, '' for none. Returns 1 if the new state is stored, by this
-- call or before, else 0.
local expected, new = ARGV[1], ARGV[2]
local known = redis.call('GET', KEYS[1]) or ''
if known == expected then redis.call('SET', KEYS[1], new) end
return (known == expected or known == new) and 1 or 0
