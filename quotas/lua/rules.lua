-- Stands before the budget's functions, after figures.lua: what each limit counts, and in which window (RULES of
-- limits.py).
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

-- Where a window's figures stand; a day and a month have one sum of prompt and output.
local STAND = {
  minute = {requests = MINUTE + 1, input = MINUTE + 2, output = MINUTE + 3},
  day = {input = DAY_SUM},
  month = {input = MONTH_SUM},
  live = {requests = HELD + 1},
  request = {},
}
local PROMISED = {input = HELD + 2, output = HELD + 3}

for number = 1, #RULES do
  local rule = RULES[number]
  local one, two = rule.counts[1], rule.counts[2]
  local used, held = STAND[rule.window], rule.window == 'request' and {} or PROMISED
  rule.number, rule.last = number, rule.counts[#rule.counts]
  rule.is_paced = rule.window == 'minute' and rule.last == 'output' -- running requests pause at this limit
  rule.used_one, rule.used_two = used[one] or ZERO, used[two or ''] or ZERO
  rule.held_one, rule.held_two = held[one] or ZERO, held[two or ''] or ZERO
end

local function used(level, rule) return level.figures[rule.used_one] + level.figures[rule.used_two] end

local function reserved(level, rule) return level.figures[rule.held_one] + level.figures[rule.held_two] end

-- What a rule counts of an ask.
local function amount_of(ask, rule)
  local counts = rule.counts
  return (ask[counts[1]] or 0) + (ask[counts[2]] or 0)
end
