"""Faults injected into a running fleet, and the invariants that must hold in spite of them.

python -m tests.system.chaos [--minutes 20] [--seed N] [--keep DIRECTORY]
python -m tests.system.chaos --pauses 30

Three gateways, three workers and a store with a replica run as processes. A proxy carries each link between a worker
and a gateway, each process's connections to the store, and the replication. Every few seconds something is killed,
stopped, cut, filled up or failed over, while clients compare each token with the undisturbed answer.

    network.py     proxies that hold, delay, cut and split bytes
    fleet.py       the processes, and the store with its replica
    members.py     the entry point of one gateway or worker: an engine whose next token depends on all before it
    clients.py     requests and their expected answers
    faults.py      the faults, each of which ends by itself
    invariants.py  what is compared at the end: ledger, reservations, leases, KV blocks, stream states, memory
    run.py         one run from a seed
    pauses.py      how long streams pause when a worker dies or a link is cut

A violation is reported with the seed and the events before it. Start with `run.py`."""
