"""The scheduling policy: who runs next, with which KV blocks, who yields, and what is promised.

    protocol/    what crosses a process: messages, lanes, settings, each request's outcome
    planner/     what one worker runs in each step, and whose KV blocks it takes
    queue/       which worker gets which job: the rules in memory, and the same in Redis
    admission/   whether a request may be promised its deadline, decided by one gateway
    simulation/  all of it in virtual time, over a cost model in place of an accelerator

The same code runs in the worker, in the gateway and in the simulator; what differs is who passes in the time. Gateways
call `admission` and `queue`, workers `queue` and `planner`, `fairlane simulate` and the benchmarks `simulation`.

Pure but for `queue/redis_queue.py` and `queue/registry.py`: no clock, no I/O, randomness only from a seed; never torch,
starlette, gateway, worker or quotas. Imports point down this list: simulation, admission, queue, planner, protocol.

Open `planner/planner.py` first for a step, `queue/memory_queue.py` for a job's life, `planner/ordering.py` for what is
fair and what is urgent.
"""
