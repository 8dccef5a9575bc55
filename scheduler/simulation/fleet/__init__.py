"""A fleet with its control plane in virtual time: what the store, its shards and the gateways do at 1,000 workers.

    control_plane.py the event loop, gateways and calls to the store; start here
    fleet.py         the workers
    store_cores.py   a store core runs one call at a time; how long each takes
    shard_queue.py   one shard of the queue: the real order, with `put` and `turn` as the control plane calls them
    rows_worker.py   a worker of rows and fixed steps, without a planner
    admission.py     the gateways' admission, and the reports that they exchange
    ceiling.py       what a shard carries, by arithmetic
    figures.py       load and waits of the store, fairness, starvation, guarantees

How shards share workers is `scheduler.queue.shards`. Used by `fairlane simulate --gateways --shards` and `advise`."""
