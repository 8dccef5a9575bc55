-- Record the progress of a worker's jobs. Called by RedisQueue.report, once per PER_CALL jobs.
-- ARGV: clock, worker, serial, part of the report from 0, then per job: job_id, epoch, generated (output tokens of all
--   choices), cost, outcome ('': it continues), number of choices whose ids follow, ids of each (4 bytes each).
-- Returns the refused jobs. A call with the serial of the worker's last report of this part is a repeat: it changes
-- nothing and returns the same.
local worker, serial, part, refused = ARGV[2], ARGV[3], ARGV[4], {}
local REPORTING = {'lane', 'tenant', 'gateway', 'state', 'worker', 'epoch', 'weight', 'credit', 'generated', 'claim',
  'bucket', 'marks'}
local reported = key('reported', worker)
local last = call('HGET', reported, part) or ''
if string.sub(last, 1, #serial + 1) == serial .. '\n' then
  for job_id in string.gmatch(string.sub(last, #serial + 2), '[^\n]+') do refused[#refused + 1] = job_id end
  return refused
end

local function accept(job, generated, cost, outcome)
  if generated > job.generated then release_claim(job) end
  local covered = math.min(job.credit, cost)
  job.generated, job.credit = math.max(job.generated, generated), job.credit - covered
  spend(job, cost - covered)
  take_back(job, covered, true)
  serve(job, cost - covered)
  if outcome ~= '' then
    spend(job, -job.credit) -- its refund, counted with the rest
    take_back(job, job.credit, false)
    job.credit = 0
    finish(job, outcome, '', true)
  else
    call('HSET', key('job', job.job_id), 'generated', job.generated, 'credit', job.credit)
  end
end

local i = 5
while i <= #ARGV do
  local job_id, choices = ARGV[i], tonumber(ARGV[i + 5])
  local job = load(job_id, REPORTING)
  if job and job.state == 'leased' and job.worker == worker and job.epoch == tonumber(ARGV[i + 1]) then
    for choice = 0, choices - 1 do
      call('SET', key('ids', job_id, choice), ARGV[i + 6 + choice], 'PX', KEPT_MS)
    end
    accept(job, tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), ARGV[i + 4])
  else
    refused[#refused + 1] = job_id
  end
  i = i + 6 + choices
end
call('HSET', reported, part, serial .. '\n' .. table.concat(refused, '\n'))
call('PEXPIRE', reported, RECORD_TTL_MS)
flush_shares()
return refused
