-- API keys: records, cards and identities.

-- name: identity
-- Reads a tenant and one of its keys; records the key's use at most once a minute. Returns {now ms, {tenant document, state,
-- version}, {key document, state, expires at ms or '', used at ms, version}}; parts are nil if they do not exist or the key belongs
-- to an earlier tenant of this id.
local USED_EVERY_MS = 60000
local tenant_id, key_id, now = ARGV[1], ARGV[2], now_ms()
local record = KEYS[1] .. 'key:' .. key_id
local tenant = redis.call('HMGET', KEYS[1] .. 'tenant:' .. tenant_id, 'doc', 'state', 'version', 'incarnation')
local incarnation = table.remove(tenant) or ''
local key = redis.call('HMGET', record, 'doc', 'state', 'expires_ms', 'used_ms', 'version', 'tenant')
local owner = table.remove(key)
if owner ~= (incarnation == '' and tenant_id or tenant_id .. '~' .. incarnation) then return {now, {false, false, false}, {false}} end
local expires, used = tonumber(key[3]), tonumber(key[4])
local works = key[2] == 'active' and not (expires and expires <= now)
if works and not (used and used <= now and now - used < USED_EVERY_MS) then
  redis.pcall('HSET', record, 'used_ms', now) -- a full store must not lock its tenants out
  key[4] = string.format('%.0f', now)
end
return {now, tenant, key}

-- name: keys_read
-- Reads the keys with the ids ARGV. Returns for each {account, document, state, expires at ms or '', used at ms, version}; nil
-- parts for unknown ids.
local found = {}
for index, id in ipairs(ARGV) do
  found[index] = redis.call('HMGET', KEYS[1] .. 'key:' .. id, 'tenant', 'doc', 'state', 'expires_ms', 'used_ms', 'version')
end
return found

-- name: key_put
-- Adds a key to a tenant, and expires the key that it replaces, if any ('' for none), at `ends_ms` at the latest. Returns 1, or
-- without a change: 0 if there is no such tenant, -1 if the old key was changed or revoked since, -2 if a key has this id, even a
-- revoked one, or the id was barred (key_bar).
local prefix, account, id, created_ms, expires_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local document, card, old, old_version, ends_ms = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9]
if not is_alive(prefix, account) then return 0 end
if redis.call('EXISTS', prefix .. 'key:' .. id, prefix .. 'barred:' .. id) > 0 then return -2 end
if old ~= '' then
  local found = redis.call('HMGET', prefix .. 'key:' .. old, 'tenant', 'state', 'version', 'expires_ms')
  if found[1] ~= account or found[2] ~= 'active' or (tonumber(found[3]) or 0) ~= old_version then return -1 end
  local ends = tonumber(found[4]) -- never extend its life
  if not ends or ends > tonumber(ends_ms) then end_key(prefix, old, 'active', ends_ms) end
end
redis.call('HSET', prefix .. 'key:' .. id, 'state', 'active', 'tenant', account, 'expires_ms', expires_ms, 'doc', document)
redis.call('ZADD', prefix .. 'keys:' .. account, created_ms, id)
redis.call('SET', prefix .. 'card:key:' .. id, card)
return changed(1)

-- name: key_change
-- Changes an active key if its version is the expected one. Returns 1, or without a change: 0 if it is another tenant's, revoked,
-- unknown or of a deleted tenant, -1 if it was changed since.
local prefix, account, id, version = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local document, expires_ms, card = ARGV[4], ARGV[5], ARGV[6]
local record = prefix .. 'key:' .. id
local found = redis.call('HMGET', record, 'tenant', 'state', 'version')
if found[1] ~= account or found[2] ~= 'active' or not is_alive(prefix, account) then return 0 end
if (tonumber(found[3]) or 0) ~= version then return -1 end
redis.call('HSET', record, 'doc', document, 'expires_ms', expires_ms, 'version', string.format('%.0f', version + 1))
redis.call('SET', prefix .. 'card:key:' .. id, card)
return changed(1)

-- name: key_end
-- Revokes a key; revoking it again changes nothing. Returns {document, state, expires at ms or '', used at ms or nil, version}, or
-- false if the tenant has no such key.
local prefix, account, id = KEYS[1], ARGV[1], ARGV[2]
local found = redis.call('HMGET', prefix .. 'key:' .. id, 'tenant', 'doc', 'state', 'expires_ms', 'used_ms', 'version')
if found[1] ~= account or not is_alive(prefix, account) then return false end
local is_active = found[3] == 'active'
if is_active then found[3], found[6] = 'revoked', end_key(prefix, id, 'revoked', found[4]) end
local reply = {found[2], found[3], found[4], found[5], found[6]}
return is_active and changed(reply) or reply

-- name: import_claim
-- Gives an imported secret (record KEYS[1]) to a key that is about to be written, if no key holds it or its holder was barred
-- (key_bar). Returns {public id, root} of the key that holds the secret. Repeatable.
local id, root, tenant, barred = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local found = redis.call('HMGET', KEYS[1], 'id', 'root')
if found[1] and found[2] and found[1] ~= id and found[1] ~= barred then return found end
redis.call('HSET', KEYS[1], 'id', id, 'root', root, 'tenant', tenant)
return {id, root}

-- name: key_bar
-- Bars a key that holds an imported secret but was not written, so that another key may hold it. Returns 1 if the key was written,
-- even if it was revoked since; 0 otherwise, or if its tenant was deleted: no key_put can write it any more. Repeatable.
local BARRED_MS = 3600000 -- longer than any import takes
local holder = ARGV[1]
local account = redis.call('HGET', KEYS[1] .. 'key:' .. holder, 'tenant')
if account and is_alive(KEYS[1], account) then return 1 end
redis.call('SET', KEYS[1] .. 'barred:' .. holder, '', 'PX', BARRED_MS)
return 0

-- name: delete_if
-- Deletes the hash KEYS[1] if a field has a given value, so that one written since stays. Repeatable.
local field, value = ARGV[1], ARGV[2]
if redis.call('HGET', KEYS[1], field) == value then redis.call('DEL', KEYS[1]) end

-- name: keys_drop
-- Removes the records and cards of some keys (ARGV[2…]) of a deleted tenant. Repeatable.
local prefix, account = KEYS[1], ARGV[1]
for i = 2, #ARGV do
  redis.call('DEL', prefix .. 'key:' .. ARGV[i])
  drop_card(prefix, 'key:' .. ARGV[i])
  redis.call('ZREM', prefix .. 'keys:' .. account, ARGV[i])
end
