-- The audit log. KEYS[1] is the log's key; both scripts may run concurrently.

-- name: audit_write
-- Appends an entry to the log unless it is there. ARGV[3…] are its fields and their values.
local most, entry_id = ARGV[1], ARGV[2]
local written = 'fl:audited:{' .. KEYS[1] .. '}' -- in the same slot
if redis.call('ZSCORE', written, entry_id) then return end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', most, '*', unpack(ARGV, 3))
redis.call('ZADD', written, now_ms(), entry_id)
redis.call('ZREMRANGEBYRANK', written, 0, -1 - most)

-- name: audit_redact
-- Copies a part of the log, redacting one tenant's changes up to a time; after the last part, the copy replaces the log. Call it
-- with '' first, and then with each part's last entry. Returns that entry, '' once the copy has replaced the log, or false if
-- another caller copies.
local caller, tenant, until_ms, previous, part_size = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local LEASE_MS, DONE = 30000, ' done'
local copy, lease = 'fl:redacted:{' .. KEYS[1] .. '}', 'fl:redacting:{' .. KEYS[1] .. '}'
local holder = redis.call('GET', lease)
if holder == caller .. DONE then return '' end -- a repeated call
if holder and holder ~= caller and string.sub(holder, -#DONE) ~= DONE then return false end
if previous == '' then
  redis.call('DEL', copy)
elseif redis.call('EXISTS', copy) == 0 then
  return false -- another caller began meanwhile, or the store lost the copy
end
redis.call('SET', lease, caller, 'PX', LEASE_MS)
local part = redis.call('XRANGE', KEYS[1], previous == '' and '-' or '(' .. previous, '+', 'COUNT', part_size)
for _, entry in ipairs(part) do
  local fields, target, at_ms, changes = entry[2], '', 0, nil
  for place = 1, #fields, 2 do
    if fields[place] == 'target' then target = fields[place + 1] end
    if fields[place] == 'at_ms' then at_ms = tonumber(fields[place + 1]) end
    if fields[place] == 'changes' then changes = place + 1 end
  end
  local is_of_tenant = target == tenant or string.sub(target, 1, #tenant + 1) == tenant .. '/'
  if changes and is_of_tenant and at_ms <= until_ms then fields[changes] = '{}' end
  local added = redis.pcall('XADD', copy, entry[1], unpack(fields)) -- at most the fields of an entry
  if added.err and not string.find(added.err, 'equal or smaller', 1, true) then return added end -- else a repeated call
end
if #part == tonumber(part_size) then return part[#part][1] end
if redis.call('EXISTS', copy) == 1 then redis.call('RENAME', copy, KEYS[1]) end
redis.call('SET', lease, caller .. DONE, 'PX', LEASE_MS)
return ''
