"""Scheduling policy: which request runs next, with which KV blocks, which one is preempted, and what is guaranteed.

    protocol/    messages between processes, lanes, shared settings, request outcomes
    planner/     what one worker runs in each step, and which KV blocks it uses
    queue/       which worker gets which job: the rules in memory, and the same rules in Redis
    links/       connections from workers to gateways, over which the tokens go
    admission/   whether a request's deadline can be guaranteed; each gateway decides for itself
    simulation/  all of the above in virtual time, with a cost model in place of an accelerator

The worker, the gateway and the simulator run the same code and pass in the time. Gateways call `admission`, `queue` and
`links`, workers call `queue`, `links` and `planner`, `fairlane simulate` and the benchmarks call `simulation`.

All modules except `queue/redis_queue.py`, `queue/registry.py` and `links` are pure: no clock, no I/O, and randomness
only from a seed. The package never imports torch, starlette, gateway, worker or quotas. Imports point down this list:
simulation, admission, queue, links and planner, protocol.

Start with `planner/planner.py` for one step, `queue/memory_queue.py` for the life of a job, and `planner/ordering.py`
for fairness and urgency."""
