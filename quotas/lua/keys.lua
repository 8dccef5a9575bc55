-- API keys: records, cards and identities.

-- name: identity
-- Reads a tenant and one of its keys; records the key's use at most once a minute. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 tenant, 2 public id
-- Returns  {now ms, {tenant document, state, version}, {key document, state, expires at ms or '', used at ms, version}};
--          parts are nil if they do not exist or the key belongs to an earlier tenant of this id
local USED_EVERY_MS = 60000
local record, now = KEYS[1] .. 'key:' .. ARGV[2], now_ms()
local tenant = redis.call('HMGET', KEYS[1] .. 'tenant:' .. ARGV[1], 'doc', 'state', 'version', 'incarnation')
local incarnation = table.remove(tenant) or ''
local key = redis.call('HMGET', record, 'doc', 'state', 'expires_ms', 'used_ms', 'version', 'tenant')
local owner = table.remove(key)
if owner ~= (incarnation == '' and ARGV[1] or ARGV[1] .. '~' .. incarnation) then return {now, {false, false, false}, {false}} end
local expires, used = tonumber(key[3]), tonumber(key[4])
local works = key[2] == 'active' and not (expires and expires <= now)
if works and not (used and used <= now and now - used < USED_EVERY_MS) then
  redis.pcall('HSET', record, 'used_ms', now) -- a full store must not lock its tenants out
  key[4] = string.format('%.0f', now)
end
return {now, tenant, key}

-- name: keys_read
-- Reads several keys. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     public ids
-- Returns  for each id {account, document, state, expires at ms or '', used at ms, version}; nil parts for unknown ids
local found = {}
for index, id in ipairs(ARGV) do
  found[index] = redis.call('HMGET', KEYS[1] .. 'key:' .. id, 'tenant', 'doc', 'state', 'expires_ms', 'used_ms', 'version')
end
return found

-- name: key_put
-- Adds a key to a tenant, and expires the key that it replaces, if any. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 public id, 3 created at ms, 4 expires at ms or '', 5 document, 6 card, 7 public id of the old key
--          or '', 8 its expected version, 9 its latest expiry, ms, 10 audit entry
-- Returns  1, or without a change: 0 if there is no such tenant, -1 if the old key was changed or revoked since, -2 if a key
--          has this id, even a revoked one, or the id was barred (key_bar)
local prefix, tenant, id, old = KEYS[1], ARGV[1], ARGV[2], ARGV[7]
if not is_alive(prefix, tenant) then return 0 end
if redis.call('EXISTS', prefix .. 'key:' .. id, prefix .. 'barred:' .. id) > 0 then return -2 end
if old ~= '' then
  local found = redis.call('HMGET', prefix .. 'key:' .. old, 'tenant', 'state', 'version', 'expires_ms')
  if found[1] ~= tenant or found[2] ~= 'active' or (tonumber(found[3]) or 0) ~= tonumber(ARGV[8]) then return -1 end
  local ends = tonumber(found[4]) -- never extend its life
  if not ends or ends > tonumber(ARGV[9]) then end_key(prefix, old, 'active', ARGV[9]) end
end
redis.call('HSET', prefix .. 'key:' .. id, 'state', 'active', 'tenant', tenant, 'expires_ms', ARGV[4], 'doc', ARGV[5])
redis.call('ZADD', prefix .. 'keys:' .. tenant, ARGV[3], id)
redis.call('SET', prefix .. 'card:key:' .. id, ARGV[6])
return changed(1)

-- name: key_change
-- Changes an active key if its version is the expected one. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 public id, 3 expected version, 4 document, 5 expires at ms or '', 6 card, 7 audit entry
-- Returns  1, or without a change: 0 if it is another tenant's, revoked, unknown or of a deleted tenant, -1 if it was changed
--          since
local prefix, id = KEYS[1], ARGV[2]
local found = redis.call('HMGET', prefix .. 'key:' .. id, 'tenant', 'state', 'version')
if found[1] ~= ARGV[1] or found[2] ~= 'active' or not is_alive(prefix, ARGV[1]) then return 0 end
if (tonumber(found[3]) or 0) ~= tonumber(ARGV[3]) then return -1 end
redis.call('HSET', prefix .. 'key:' .. id, 'doc', ARGV[4], 'expires_ms', ARGV[5], 'version', string.format('%.0f', ARGV[3] + 1))
redis.call('SET', prefix .. 'card:key:' .. id, ARGV[6])
return changed(1)

-- name: key_end
-- Revokes a key; revoking it again changes nothing. Called by KeyStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2 public id, 3 audit entry
-- Returns  {document, state, expires at ms or '', used at ms or nil, version}, or false if the tenant has no such key
local prefix, id = KEYS[1], ARGV[2]
local found = redis.call('HMGET', prefix .. 'key:' .. id, 'tenant', 'doc', 'state', 'expires_ms', 'used_ms', 'version')
if found[1] ~= ARGV[1] or not is_alive(prefix, ARGV[1]) then return false end
local is_active = found[3] == 'active'
if is_active then found[3], found[6] = 'revoked', end_key(prefix, id, 'revoked', found[4]) end
local reply = {found[2], found[3], found[4], found[5], found[6]}
return is_active and changed(reply) or reply

-- name: import_claim
-- Gives an imported secret to a key that is about to be written, if no key holds it or its holder was barred. Repeatable.
-- Called by KeyStore.
-- KEYS[1]  record of the secret
-- ARGV     1 public id, 2 root, 3 tenant, 4 public id of the barred holder (key_bar), or ''
-- Returns  {public id, root} of the key that holds the secret
local found = redis.call('HMGET', KEYS[1], 'id', 'root')
if found[1] and found[2] and found[1] ~= ARGV[1] and found[1] ~= ARGV[4] then return found end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'root', ARGV[2], 'tenant', ARGV[3])
return {ARGV[1], ARGV[2]}

-- name: key_bar
-- Bars a key that holds an imported secret but was not written, so that another key may hold it. Repeatable. Called by
-- KeyStore.
-- KEYS[1]  prefix of all keys of the holder's root, with its hash tag
-- ARGV     1 public id of the holder
-- Returns  1 if the key was written, even if it was revoked since; 0 otherwise, or if its tenant was deleted: no key_put can
--          write it any more
local BARRED_MS = 3600000 -- longer than any import takes
local account = redis.call('HGET', KEYS[1] .. 'key:' .. ARGV[1], 'tenant')
if account and is_alive(KEYS[1], account) then return 1 end
redis.call('SET', KEYS[1] .. 'barred:' .. ARGV[1], '', 'PX', BARRED_MS)
return 0

-- name: delete_if
-- Deletes a hash if a field has a given value, so that one written since stays. Repeatable. Called by KeyStore and
-- BudgetErasure.
-- KEYS[1]  the hash
-- ARGV     1 field, 2 value
-- Returns  nothing
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('DEL', KEYS[1]) end

-- name: keys_drop
-- Removes the records and cards of some keys of a deleted tenant. Repeatable. Called by BudgetErasure.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 account, 2… at most AT_ONCE public ids
-- Returns  nothing
local prefix = KEYS[1]
for i = 2, #ARGV do
  redis.call('DEL', prefix .. 'key:' .. ARGV[i])
  drop_card(prefix, 'key:' .. ARGV[i])
  redis.call('ZREM', prefix .. 'keys:' .. ARGV[1], ARGV[i])
end
