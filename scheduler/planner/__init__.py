"""What one worker runs in each step: `planner.py` first, with `plan(now)`, `apply(result)` and what comes between them.

    sequence.py, sequence_group.py   one choice's states and moves; a job with its choices and deadlines
    sequence_index.py, lane_index.py every sequence, filed by what it could do next; one lane's tenants and waiting work
    ordering.py                      fairness between tenants, urgency, and when a first token is due
    priority.py                      the one order of all that could run
    step_budget.py                   rows, tokens and time that a step may hold
    placement.py, step_builder.py    the walk down that order, and the plan that it fills
    preemption.py                    who yields blocks to whom
    waits.py                         why sequences had no part in a step, and how long
    forecast.py                      how long outputs become, and whether the pools will hold them
    costs.py, fading.py              what steps and copies take, learnt from every step
    capacity.py                      what a worker could start next: what it asks the queue for
    coast.py                         steps that need no plan, for the simulator
    steps.py                         a plan and its result as plain values
    kv/                              which KV blocks are whose

The worker's engine thread and the simulator call in; the queue shares `ordering.py`, admission `costs.py`. Imports
`protocol` alone: no store, no clock, no tensor.
"""
