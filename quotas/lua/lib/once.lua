-- Precedes scripts whose changes do not show that they were made. Their last argument names the call and is removed here. A
-- call repeated after a lost reply gets the first reply and changes nothing. Clients resend at once, so a minute is enough.
local REPLY, KEPT_REPLY_MS = KEYS[1] .. 'reply:' .. table.remove(ARGV), 60000
do
  local reply = redis.call('GET', REPLY)
  if reply then return cmsgpack.unpack(reply) end
end

-- Ends a script after a change, with its reply.
local function once(reply)
  redis.call('SET', REPLY, cmsgpack.pack(reply), 'PX', KEPT_REPLY_MS)
  return reply
end
