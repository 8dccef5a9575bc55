-- The ledger's entries: export and trimming.

-- name: ledger_unexported
-- Reads an account's unexported entries, oldest first; writes nothing. Called by LedgerExports.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 most entries
-- Returns  {id of the last exported entry, number of the entry before those returned here, entries trimmed before they were
--          exported, the entries as in XRANGE}
local ledger, found = KEYS[1] .. 'ledger:' .. ARGV[1], {}
local exported = redis.call('HMGET', KEYS[1] .. 'exported:' .. ARGV[1], 'id', 'number')
local after, number = exported[1] or '0-0', tonumber(exported[2])
if redis.call('EXISTS', ledger) == 0 then return {after, number or 0, 0, {}} end
local info = redis.call('XINFO', 'STREAM', ledger)
for at = 1, #info, 2 do found[info[at]] = info[at + 1] end
local trimmed = found['entries-added'] - found['length']
if not number or number > found['entries-added'] then number = trimmed end -- the first export, or a new ledger
local lost = math.max(0, trimmed - number)
return {after, number + lost, lost, redis.call('XRANGE', ledger, '(' .. after, '+', 'COUNT', ARGV[2])}

-- name: ledger_exported
-- Records that entries of an account are exported; repeatable. Called by LedgerExports.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 id of the entry before them, 3 id of the last, 4 its number
-- Returns  nothing
local exported = KEYS[1] .. 'exported:' .. ARGV[1]
if redis.call('EXISTS', KEYS[1] .. 'ledger:' .. ARGV[1]) == 0 then return end -- it was erased
if (redis.call('HGET', exported, 'id') or '0-0') ~= ARGV[2] then return end
redis.call('HSET', exported, 'id', ARGV[3], 'number', ARGV[4])

-- name: ledger_trim
-- Drops an account's entries that are too old. Called by RollUp.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 time before which they are dropped, ms, 3 '1' to keep unexported ones
-- Returns  nothing
local before = tonumber(ARGV[2])
if ARGV[3] == '1' then
  local exported = redis.call('HGET', KEYS[1] .. 'exported:' .. ARGV[1], 'id')
  before = math.min(before, tonumber(string.match(exported or '0', '^%d+')))
end
redis.call('XTRIM', KEYS[1] .. 'ledger:' .. ARGV[1], 'MINID', string.format('%.0f', before))

-- name: export_write
-- Replaces the exporter's state if it is the expected one. Called by LedgerExports.
-- KEYS[1]  the state
-- ARGV     1 expected state, '' for none, 2 new state
-- Returns  1 if the new state is stored, by this call or before; 0 without a change otherwise
local known = redis.call('GET', KEYS[1]) or ''
if known == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
return (known == ARGV[1] or known == ARGV[2]) and 1 or 0
