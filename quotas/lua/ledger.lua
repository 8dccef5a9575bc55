-- The ledger's entries: which are not exported yet, and which go.

-- name: ledger_unexported
-- Reads entries of an account's ledger that are not exported yet, oldest first; writes nothing. Called by LedgerExports.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 most entries
-- Returns  {id of the last entry that was exported, number of the entry before the first that follows here, how many were
--          trimmed since the last export without being exported, the entries as of XRANGE}
local ledger, found = KEYS[1] .. 'ledger:' .. ARGV[1], {}
local exported = redis.call('HMGET', KEYS[1] .. 'exported:' .. ARGV[1], 'id', 'number')
local after, number = exported[1] or '0-0', tonumber(exported[2])
if redis.call('EXISTS', ledger) == 0 then return {after, number or 0, 0, {}} end
local info = redis.call('XINFO', 'STREAM', ledger)
for at = 1, #info, 2 do found[info[at]] = info[at + 1] end
local trimmed = found['entries-added'] - found['length']
if not number or number > found['entries-added'] then number = trimmed end -- the first export; a ledger that begins anew
local lost = math.max(0, trimmed - number)
return {after, number + lost, lost, redis.call('XRANGE', ledger, '(' .. after, '+', 'COUNT', ARGV[2])}

-- name: ledger_exported
-- Notes that entries of an account's ledger are exported. Called by LedgerExports.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 id of the entry before them, 3 id of the last, 4 its number
-- Returns  nothing; where that was noted before, nothing is changed
local exported = KEYS[1] .. 'exported:' .. ARGV[1]
if redis.call('EXISTS', KEYS[1] .. 'ledger:' .. ARGV[1]) == 0 then return end -- it was erased
if (redis.call('HGET', exported, 'id') or '0-0') ~= ARGV[2] then return end
redis.call('HSET', exported, 'id', ARGV[3], 'number', ARGV[4])

-- name: ledger_trim
-- Drops entries of an account's ledger that are too old. Called by RollUp.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 ms before which they go, 3 '1' where those stay that are not exported
-- Returns  nothing
local before = tonumber(ARGV[2])
if ARGV[3] == '1' then
  local exported = redis.call('HGET', KEYS[1] .. 'exported:' .. ARGV[1], 'id')
  before = math.min(before, tonumber(string.match(exported or '0', '^%d+')))
end
redis.call('XTRIM', KEYS[1] .. 'ledger:' .. ARGV[1], 'MINID', string.format('%.0f', before))

-- name: export_write
-- Replaces what is known of the export of all ledgers, if it is as the writer saw it. Called by LedgerExports.
-- KEYS[1]  where it stands
-- ARGV     1 as it was seen, '' for nothing, 2 as it shall be
-- Returns  1 where it is so, by this call or before, or 0 having written nothing
local known = redis.call('GET', KEYS[1]) or ''
if known == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
return (known == ARGV[1] or known == ARGV[2]) and 1 or 0
