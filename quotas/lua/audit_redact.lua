-- Copies a part of the audit log, redacting one tenant's changes; after the last part, the copy replaces the log. Called by
-- AuditRedaction, once per part.
-- KEYS[1]  the audit log
-- ARGV     1 the caller, 2 tenant, 3 time up to which its entries are redacted, ms, 4 last entry of the previous part, '' for
--          the first, 5 entries per part
-- Returns  the part's last entry, '' once the copy has replaced the log, or false if another caller copies
local LEASE_MS, DONE = 30000, ' done'
local copy, lease = 'fl:redacted:{' .. KEYS[1] .. '}', 'fl:redacting:{' .. KEYS[1] .. '}'
local holder = redis.call('GET', lease)
if holder == ARGV[1] .. DONE then return '' end -- a repeated call
if holder and holder ~= ARGV[1] and string.sub(holder, -#DONE) ~= DONE then return false end
if ARGV[4] == '' then
  redis.call('DEL', copy)
elseif redis.call('EXISTS', copy) == 0 then
  return false -- another caller began meanwhile, or the store lost the copy
end
redis.call('SET', lease, ARGV[1], 'PX', LEASE_MS)
local tenant, until_ms = ARGV[2], tonumber(ARGV[3])
local part = redis.call('XRANGE', KEYS[1], ARGV[4] == '' and '-' or '(' .. ARGV[4], '+', 'COUNT', ARGV[5])
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
if #part == tonumber(ARGV[5]) then return part[#part][1] end
if redis.call('EXISTS', copy) == 1 then redis.call('RENAME', copy, KEYS[1]) end
redis.call('SET', lease, ARGV[1] .. DONE, 'PX', LEASE_MS)
return ''
