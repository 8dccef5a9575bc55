-- Queue a job. Called by RedisQueue.put, for gateways. Idempotent by job_id; a refusal writes nothing.
-- ARGV: clock, job_id, lane, tenant, tenant_limit ('' = none), gateway, first_due, hard_first, hard_end (ms from
--   arrival), body, weight, n, prompt, guaranteed, follows, whole (KV tokens that a choice can grow to),
--   claim (us of all workers, 0: none), due time of the claim (ms from arrival), waited (ms in another queue),
--   fingerprint of its prompt, expected work (us of all workers), ms per prompt token (0: not known), digests of its
--   prompt's prefixes, output tokens of an earlier run from which it continues.
-- Returns {'ok', 1 + the tenant's own ahead in the lane (0: it does not wait), guaranteed, preferred worker ('': none),
--   the worker that it was leased to or that was called for it ('': neither)},
--   {'tenant', depth, retry_after_ms}, {'lane', depth, retry_after_ms}
--   or {'late', ms by which it would miss its stated deadline}.
local job_id, lane, tenant, tenant_limit, gateway = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local queue, waiting = key('queue', lane, tenant), key('waiting', lane)

local known = call('HMGET', key('job', job_id), 'lane', 'tenant', 'guaranteed', 'home', 'called')
if known[1] then
  local position = (call('ZRANK', key('queue', known[1], known[2]), job_id) or -1) + 1
  return {'ok', position, tonumber(known[3]), known[4] or '', known[5] or ''}
end

-- Time until one of these places frees, at the lane's current rate.
local function drain(places)
  local oldest = call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  return math.max(1, math.ceil((NOW - tonumber(oldest or NOW)) / math.max(1, places)))
end

if tenant_limit ~= '' then
  local own = waiting_of(tenant)
  if own >= tonumber(tenant_limit) then return {'tenant', own, drain(own)} end
end

local depth = call('ZCARD', waiting)
IS_BACKLOGGED[lane] = depth > 0
if depth >= LANE[lane].max_queued then
  return {'lane', depth, drain(depth)}
end

local arrived = NOW - ARGV[19]
local job = {job_id = job_id, lane = lane, tenant = tenant, gateway = gateway, queued = arrived,
  generated = tonumber(ARGV[24]), returned = 0,
  due = arrived + ARGV[7], hard_first = arrived + ARGV[8], hard_end = arrived + ARGV[9], n = tonumber(ARGV[12]),
  prompt = tonumber(ARGV[13]), guaranteed = tonumber(ARGV[14]), follows = tonumber(ARGV[15]), whole = tonumber(ARGV[16]),
  claim = tonumber(ARGV[17]), bucket = 0, losses = 0, arrived = arrived, weight = tonumber(ARGV[11]), body = ARGV[10],
  prefix = ARGV[23]:sub(-DIGEST_BYTES), state = 'queued', worker = '', epoch = 0, taken = 0, credit = 0, marks = '',
  given = ''}
if job.claim > 0 then
  local level, claim, bucket = LANE[lane].level, job.claim, nil
  local is_ahead = lead_of(job, tonumber(ARGV[11])) > window_at(LANE[lane], tonumber(ARGV[22]))
  if not is_ahead then bucket = book(level, arrived + ARGV[18], claim) end
  job.guaranteed, job.claim, job.bucket = bucket and 1 or 0, bucket and claim or 0, bucket or 0
  if not (bucket or is_ahead) and ARGV[19] == '0' then
    local late = late_by(level, math.min(job.hard_first, job.hard_end), claim)
    if late > 0 then return {'late', late} end
  end
end
ask(lane, tonumber(ARGV[21]))
local preferred = ''
if job.guaranteed == 0 and not (depth > 0 and is_short_of_room(lane)) then preferred = find_preferred(ARGV[23]) end
local worker, room
if not has_elder(LANE[lane]) then worker, room = find_room(job, preferred) end
call('ZADD', key('jobs', gateway), 0, job_id)
call('ZADD', key('gateways'), 'GT', NOW + GATEWAY_LEASES * LEASE_MS, gateway)
if worker then
  hand_over(job, worker, room)
else
  seat(job)
  worker = call_worker(job, preferred)
end
call('HSET', key('job', job_id), 'lane', lane, 'tenant', tenant, 'gateway', gateway, 'state', job.state,
  'worker', job.worker, 'outcome', '', 'due', job.due, 'hard_first', job.hard_first, 'hard_end', job.hard_end,
  'epoch', job.epoch, 'arrived', arrived, 'queued', arrived, 'taken', job.taken, 'cancelled', 0, 'returned', 0,
  'losses', 0, 'generated', job.generated, 'credit', job.credit, 'body', ARGV[10], 'weight', ARGV[11], 'n', job.n,
  'prompt', job.prompt, 'guaranteed', job.guaranteed, 'follows', job.follows, 'whole', job.whole, 'claim', job.claim,
  'bucket', job.bucket, 'print', ARGV[20], 'home', preferred, 'prefix', job.prefix, 'marks', job.marks,
  'called', worker, 'given', job.given)
flush_shares()
return {'ok', room and 0 or call('ZRANK', queue, job_id) + 1, job.guaranteed, preferred, worker}
