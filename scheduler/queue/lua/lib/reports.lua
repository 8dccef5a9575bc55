-- Shared after `jobs`: the progress that workers report.
local REPORTING = {'lane', 'tenant', 'gateway', 'state', 'worker', 'epoch', 'weight', 'credit', 'generated', 'claim',
  'bucket', 'marks'}

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

-- Record jobs from ARGV[at] up to ARGV[last]: for each job_id, epoch, generated (output tokens of all choices), cost,
-- outcome ('': it continues), number of choices whose ids follow, ids of each (4 bytes each). Returns the refused jobs,
-- and how many jobs there were.
local function record(worker, at, last)
  local refused, jobs = {}, 0
  while at <= last do
    local job_id, choices = ARGV[at], tonumber(ARGV[at + 5])
    local job = load(job_id, REPORTING)
    if job and job.state == 'leased' and job.worker == worker and job.epoch == tonumber(ARGV[at + 1]) then
      for choice = 0, choices - 1 do
        call('SET', key('ids', job_id, choice), ARGV[at + 6 + choice], 'PX', KEPT_MS)
      end
      accept(job, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4])
    else
      refused[#refused + 1] = job_id
    end
    jobs = jobs + 1
    at = at + 6 + choices
  end
  return refused, jobs
end
