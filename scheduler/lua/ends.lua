-- Prelude: how a job ends (scheduler/job_book.py states the rules). After `base` and `places`.

-- Give the tenant back what was charged when the job was taken and has not been computed.
local function refund(job)
  charge(job, -job.credit)
  job.credit = 0
end

-- End a job for good; `silent` where its worker tells the gateway. The prompt goes at once, the rest
-- when it is forgotten, or where no gateway lives to do that, at last by itself.
local function finish(job, outcome, message, silent)
  if job.state == 'queued' then unseat(job) else call('ZREM', key('held', job.worker), job.flight) end
  refund(job)
  release_claim(job)
  call('ZREM', key('flights', job.gateway), job.flight)
  job.state, job.outcome = 'ended', outcome
  local record = key('job', job.flight)
  call('HSET', record, 'state', 'ended', 'outcome', outcome, 'credit', 0, 'generated', job.generated)
  call('HDEL', record, 'body')
  call('PEXPIRE', record, KEPT_MS)
  for choice = 0, job.n - 1 do call('PEXPIRE', key('ids', job.flight, choice), KEPT_MS) end
  if silent then return end
  local event = {type = 'finished', flight_id = job.flight, epoch = job.epoch, outcome = outcome, error = message or ''}
  tell(key('events', job.gateway), 'e', cmsgpack.pack({event}))
end

-- End the first of the waiting jobs whose time is over.
local function expire()
  for _, flight in ipairs(call('ZRANGEBYSCORE', key('expiry'), '-inf', NOW, 'LIMIT', 0, SWEEP)) do
    local job = load(flight)
    if job then finish(job, 'expired') else call('ZREM', key('expiry'), flight) end
  end
end
