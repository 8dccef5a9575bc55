"""The global queue of one model: which worker gets which job, and what happens to jobs whose worker or gateway dies.

    memory_queue.py   the rules of the main calls, in memory, for simulations: start here
    memory_jobs.py    the state changes of a job: queued, leased, given back, ended
    take_order.py     the order in which one `turn` hands out jobs, also to unequal workers
    share_floor.py    the account of a lane's share floor
    prefix_affinity.py  the worker that probably has a prompt's prefix cached
    rooms.py          free capacity of workers, and the worker that gets a new job or is called for it
    shards.py         one queue divided over several shards: names, and how they share workers
    promises.py       time guaranteed by all gateways together
    types.py          arguments, results, errors and limits that both queues share
    redis_queue.py    every call, one function of `lua/` each
    keys.py           every key, and how the functions are assembled
    registry.py       the workers and models that exist

Gateways put, cancel and watch that their jobs are started. Workers turn, report and renew. The elected gateway reclaims
each second. The simulator uses the in-memory queue. A state-machine test sends the Redis queue and the tests' model of
it the same calls, so a rule that changes in `lua/` must change there. No call leases,
ends or returns more than `store.bounds.JOBS_PER_CALL` jobs; the callers here repeat it until all are done. Never
imports gateway, worker, quotas or admission."""
