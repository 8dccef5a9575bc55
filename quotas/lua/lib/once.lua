-- Stands before scripts whose repetition the store cannot recognise by what they have changed. Their last argument names the
-- call; it is removed here. A call that is sent again, because its reply was lost, gets the reply of its first run and
-- changes nothing. A client resends at once, so replies are kept for a minute.
local REPLY, KEPT_REPLY_MS = KEYS[1] .. 'reply:' .. table.remove(ARGV), 60000
do
  local reply = redis.call('GET', REPLY)
  if reply then return cmsgpack.unpack(reply) end
end

-- Ends a script that has changed something, with its reply.
local function once(reply)
  redis.call('SET', REPLY, cmsgpack.pack(reply), 'PX', KEPT_REPLY_MS)
  return reply
end
