-- Notes a reservation that ran while nobody could ask, whatever the limits say, and holding nothing: settle then charges it.
-- Called by RedisQuotaStore.
-- KEYS[1]  prefix of all keys of the root, with its hash tag
-- ARGV     1 reservation, 2 tenant, 3 key or '', 4 model, 5 lane, 6 prompts, 7 lease ms, 8 name of its idempotency
--          key's request, or '', 9 until when that is known, ms
-- Returns  1; 0 having written nothing where the reservation is known, reserved or settled, or its tenant has gone
local prefix, reservation_id, tenant, key = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local reservation_key, now = prefix .. 'reservation:' .. reservation_id, now_ms()
if redis.call('EXISTS', reservation_key) == 1 then return 0 end
local levels = open_levels(prefix, places_of(tenant, key), now, {})
if not levels[1].is_known or levels[1].state == DELETED then return 0 end

local others, named = others_of(levels[1], tenant, ARGV[4], ARGV[5])
if #others > 0 then open_levels(prefix, others, now, levels) end
for _, level in ipairs(levels) do
  minute_add(level, 1, 0, 0)
  hold(level, 1, 0, 0)
end
write_levels(prefix, levels, reservation_key, struct.pack(RESERVATION, 0, 0, 0, 0, 0, 0, ARGV[6], levels[1].current, 0, 0, 0, 0,
  tenant, key, ARGV[4], ARGV[5], '', named, 0, 0, ARGV[8], ARGV[9]))
note_run(prefix, ARGV[8], tonumber(ARGV[9]), reservation_id, now)
redis.call('ZADD', prefix .. 'leases', now + ARGV[7], reservation_id)
return 1
