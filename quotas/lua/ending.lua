-- Stands before key_put and key_end: how a key ends.

-- Writes its state and when it expires ('' = never) into its record and its card. Returns its new version.
local function end_key(prefix, id, state, expires_ms)
  local record, card = prefix .. 'key:' .. id, prefix .. 'card:key:' .. id
  redis.call('HSET', record, 'state', state, 'expires_ms', expires_ms)
  redis.call('SET', card, struct.pack('<dd', state == 'active' and 1 or 4, tonumber(expires_ms) or 0) ..
    string.sub(redis.call('GET', card), 17))
  return redis.call('HINCRBY', record, 'version', 1)
end
