-- Stands before reserve, extend, settle and statuses: what each limit counts, and in which window (RULES of limits.py).
local RULES = {
  {name = 'requests_per_minute', window = 'minute', counts = {'requests'}, kind = 'rate'},
  {name = 'tokens_per_minute', window = 'minute', counts = {'input', 'output'}, kind = 'rate'},
  {name = 'input_tokens_per_minute', window = 'minute', counts = {'input'}, kind = 'rate'},
  {name = 'output_tokens_per_minute', window = 'minute', counts = {'output'}, kind = 'rate'},
  {name = 'tokens_per_day', window = 'day', counts = {'input', 'output'}, kind = 'quota'},
  {name = 'tokens_per_month', window = 'month', counts = {'input', 'output'}, kind = 'quota'},
  {name = 'concurrent_requests', window = 'live', counts = {'requests'}, kind = 'concurrency'},
  {name = 'queued_requests', window = 'request', counts = {}, kind = 'exceeds'},
  {name = 'max_prompt_tokens', window = 'request', counts = {'prompt'}, kind = 'exceeds'},
  {name = 'max_output_tokens', window = 'request', counts = {'ceiling'}, kind = 'exceeds'},
}

local function sum(figures, fields)
  local total = 0
  for _, field in ipairs(fields) do total = total + (figures[field] or 0) end
  return total
end

local function used(level, rule) return sum(level[rule.window], rule.counts) end

local function reserved(level, rule)
  if rule.window == 'request' then return 0 end
  return sum(level.held, rule.counts)
end
