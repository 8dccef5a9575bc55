"""The only way to Redis or Valkey: one server, Sentinels or a Cluster, by the store's URL.

    urls.py             what a URL means, and the pool of connections to it
    connections.py      a gateway's clients: one for requests, one for upkeep, readers; each with its time limit
    pipeline.py         one connection on which the calls of all requests follow each other
    cluster.py          a Cluster as one client; `client`, a plain client of any URL, for workers
    circuit_breaker.py  calls fail at once while the store is away; trials find out when it is back
    timeouts.py         time limits that do not count the event loop's own lateness
    retry.py            calls repeated until the store answers, work repeated at intervals
    election.py         one process among all that share a store, for upkeep
    checks.py           whether a store is fit to be relied on: version, eviction, persistence, rights
    bounds.py           how much work one call may do, and how more is split
    errors.py           what a call raises while the store is away

Open `connections.py` first. Gateway, worker, quotas, the global queue and the command call in. It knows no key, no
budget and no job, and imports nothing else of the product.
"""
