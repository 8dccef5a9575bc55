-- Prelude: the other moves of a job (scheduler/job_book.py states the rules). After `base`, `places` and `ends`.

-- Give a waiting job, its body too, to a worker, charging `cost` provisionally: what `take` answers for it.
local function lease(job, worker, cost)
  unseat(job)
  job.epoch, job.credit = job.epoch + 1, cost
  call('ZADD', key('held', worker), job.losses, job.flight)
  local record = key('job', job.flight)
  call('HSET', record, 'state', 'leased', 'worker', worker, 'taken', NOW, 'returned', 0, 'epoch', job.epoch,
    'credit', cost)
  charge(job, cost)
  local answer = {job.body, job.epoch, NOW - job.arrived, job.granted, job.guaranteed}
  for choice = 0, job.n - 1 do
    answer[6 + choice] = job.generated > 0 and call('GET', key('ids', job.flight, choice)) or ''
  end
  return answer
end

-- Return a leased job to the head of its lane; one that was told to stop ends instead.
local function give_back(job)
  if job.cancelled == 1 then return finish(job, 'cancelled') end
  call('ZREM', key('held', job.worker), job.flight)
  refund(job)
  job.state, job.worker, job.returned, job.queued, job.epoch = 'queued', '', 1, NOW, job.epoch + 1
  call('HSET', key('job', job.flight), 'state', 'queued', 'worker', '', 'returned', 1, 'queued', NOW,
    'epoch', job.epoch, 'credit', 0, 'losses', job.losses)
  seat(job)
end

-- A leased job whose worker is dead, or has lost its thread: back to the queue, but not for ever.
local function lose(job)
  job.losses = job.losses + 1
  if job.losses >= MAX_LOSSES and job.cancelled == 0 then finish(job, 'failed', POISONED) else give_back(job) end
end

-- End a waiting job; tell the holder of a leased one, once.
local function stop(job)
  if job.state == 'queued' then
    finish(job, 'cancelled')
  elseif job.state == 'leased' and job.cancelled == 0 then
    job.cancelled = 1
    call('HSET', key('job', job.flight), 'cancelled', 1)
    tell(key('control', job.worker), 'c', cmsgpack.pack({type = 'cancel', flight_id = job.flight}))
  end
end

-- After half a lease in which nobody renewed or reclaimed, nothing is taken from anybody for one full lease.
local function is_quiet()
  local pulse = call('HMGET', key('pulse'), 'seen', 'quiet_until')
  local quiet_until = tonumber(pulse[2] or 0)
  if pulse[1] and NOW - tonumber(pulse[1]) > LEASE_MS / 2 then quiet_until = NOW + LEASE_MS end
  call('HSET', key('pulse'), 'seen', NOW, 'quiet_until', quiet_until)
  return NOW < quiet_until and quiet_until <= NOW + LEASE_MS -- a clock may have stepped ahead, and back
end

-- No worker has renewed its lease here for so long, though those that live had the time to: somebody looks regularly.
local function is_orphan(grace_ms)
  local pulse = call('HMGET', key('pulse'), 'seen', 'quiet_until', 'served')
  if not pulse[3] then return false end
  local seen, quiet_until, served = tonumber(pulse[1] or 0), tonumber(pulse[2] or 0), tonumber(pulse[3])
  if NOW - seen > LEASE_MS / 2 or (NOW < quiet_until and quiet_until <= NOW + LEASE_MS) then return false end
  return NOW - served >= grace_ms
end
