"""What one worker runs in each step. Open `planner.py` first: `plan(now)` and `apply(result)`.

`sequence_index.py` knows every sequence; `priority.py` puts what could run in one order; `step_budget.py` says what a
step may hold; `placement.py` walks down the order and fills `step_builder.py`; `preemption.py` says who yields,
`rebalance.py` evens tenants out, `kv/` counts blocks. `costs.py` learns what steps and copies take. The worker and the
simulator call in.
"""
