"""Step planning for one worker. Start with `planner.py`: `plan(now)`, `apply(result)` and the calls between them.

    sequence.py, sequence_group.py   states and transitions of one choice; a job with its choices and deadlines
    sequence_index.py, lane_index.py every sequence, filed by what it can do next; one lane's tenants and waiting work
    ordering.py                      fairness between tenants, urgency, and due times of first tokens
    priority.py                      the total order of everything that could run
    step_budget.py                   rows, tokens and time that a step may hold
    placement.py, step_builder.py    the walk down that order, and the plan that it fills
    preemption.py                    which sequences yield blocks to which
    waits.py                         why, and for how long, sequences were left out of steps
    forecast.py                      expected output lengths, and whether the pools will hold them
    costs.py, fading.py              cost of steps and copies, learnt from every step
    capacity.py                      what a worker could start next, which it asks the queue for
    coast.py                         steps that need no plan, for the simulator
    steps.py                         a plan and its result as plain values
    kv/                              ownership of KV blocks

The worker's engine thread and the simulator call the planner; the queue uses `ordering.py`, admission uses `costs.py`.
The package imports only `protocol`: no store, no clock, no tensors."""
