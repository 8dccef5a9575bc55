-- Record one step of one worker for one gateway's jobs. Called by RedisQueue.publish, once per PER_CALL jobs.
-- ARGV: clock, gateway, worker, serial, part of the step from 0, then per job: job_id, epoch, cost, outcome
--   ('': it continues), its events (one encoded list, '': none), number of choices with tokens, and for each: choice,
--   first index, ids (4 bytes each).
-- Returns the refused jobs. A call with the serial of the worker's last call for this part and gateway is a repeat: it
--   changes nothing and returns the same.
-- A publication can have a gap if a crash of the store lost the end of the record; the job is then given to another
-- worker, which continues from the record.
local gateway, worker, serial, part = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local PUBLISHING = {'lane', 'tenant', 'gateway', 'state', 'worker', 'epoch', 'n', 'weight', 'credit', 'generated',
  'claim', 'bucket', 'marks'}
local refused, entry, returned = {}, {}, false
local mark = part == '0' and worker or worker .. ' ' .. part
local last = call('HGET', key('serials', gateway), mark) or ''
if string.sub(last, 1, #serial + 1) == serial .. '\n' then
  for job_id in string.gmatch(string.sub(last, #serial + 2), '[^\n]+') do refused[#refused + 1] = job_id end
  return refused
end

-- 'new' if each choice continues where its record ends, 'repeat' if all tokens are recorded, 'gap' otherwise.
local function compare(job, first_arg, last_arg)
  local is_new, is_repeat = true, true
  for i = first_arg, last_arg, 3 do
    if tonumber(ARGV[i]) >= job.n then return 'gap' end
    local first = tonumber(ARGV[i + 1])
    local recorded = job.n == 1 and job.generated or call('STRLEN', key('ids', job.job_id, ARGV[i])) / 4
    is_new = is_new and first == recorded
    is_repeat = is_repeat and first + #ARGV[i + 2] / 4 <= recorded
  end
  return is_new and 'new' or is_repeat and 'repeat' or 'gap'
end

local function accept(job, i, last_arg)
  local produced, cost = 0, tonumber(ARGV[i + 2])
  for arg = i + 6, last_arg, 3 do
    call('APPEND', key('ids', job.job_id, ARGV[arg]), ARGV[arg + 2])
    produced = produced + #ARGV[arg + 2] / 4
  end
  if ARGV[i + 4] ~= '' then entry[#entry + 1], entry[#entry + 2] = #entry, ARGV[i + 4] end
  if produced > 0 then release_claim(job) end
  local covered = math.min(job.credit, cost)
  job.generated, job.credit = job.generated + produced, job.credit - covered
  spend(job, cost - covered)
  take_back(job, covered, true)
  serve(job, cost - covered)
  if ARGV[i + 3] ~= '' then
    spend(job, -job.credit) -- its refund, counted with the rest
    take_back(job, job.credit, false)
    job.credit = 0
    finish(job, ARGV[i + 3], '', true)
  elseif produced > 0 or covered > 0 then
    call('HSET', key('job', job.job_id), 'generated', job.generated, 'credit', job.credit)
  end
end

local i = 6
while i <= #ARGV do
  local last_arg = i + 5 + 3 * ARGV[i + 5]
  local job = load(ARGV[i], PUBLISHING)
  local is_held = job and job.state == 'leased' and job.worker == worker and job.gateway == gateway
  local verdict = is_held and job.epoch == tonumber(ARGV[i + 1]) and compare(job, i + 6, last_arg) or 'stale'
  if verdict == 'new' then
    accept(job, i, last_arg)
  elseif verdict ~= 'repeat' or ARGV[i + 3] ~= '' then
    refused[#refused + 1] = ARGV[i]
    if verdict ~= 'stale' then
      lose(load(ARGV[i]))
      returned = true
    end
  end
  i = last_arg + 1
end
if returned then wake() end
if #entry > 0 then tell(key('events', gateway), unpack(entry)) end -- at most two values a job
call('HSET', key('serials', gateway), mark, serial .. '\n' .. table.concat(refused, '\n'))
call('PEXPIRE', key('serials', gateway), RECORD_TTL_MS)
flush_shares()
return refused
