"""The global queue of one model: which worker gets which job, and what becomes of jobs whose holder is lost.

    memory_queue.py   the rules, call by call, in memory: open this first
    memory_jobs.py    a job's moves: queued, leased, given back, ended
    take_order.py     in which order one `take` hands jobs out, to workers that may be unequal
    share_floor.py    what a lane's share floor is behind by
    homes.py          which worker has computed a prompt's beginning, and so is to ask for it first
    rooms.py          which worker is called for a new job: one that has room
    promises.py       the time that all gateways together have guaranteed
    types.py          what is taken, given and refused, and the limits that both queues share
    redis_queue.py    the same calls in Redis, one script of `lua/` each
    keys.py           every key, and what the scripts are put together from
    registry.py       which workers and models there are

Gateways put, cancel and grant; workers take, publish and renew; the elected gateway reclaims each second. The simulator
uses the queue in memory, and a state machine sends both queues the same calls. A rule that changes here changes in
`lua/`. No call works on more than `store.bounds.PER_CALL` jobs; the callers here repeat it until all is done.
Never imports gateway, worker, quotas or admission.
"""
