"""Access to Redis or Valkey: one server, Sentinels or a Cluster, selected by the store's URL.

    urls.py             parses store URLs and builds connection pools
    connections.py      a gateway's clients: one for requests, one for upkeep, readers; each with its own time limit
    pipeline.py         one connection that multiplexes the script calls of all requests
    cluster.py          a Cluster as one client; `client`, a plain client of any URL, for workers
    circuit_breaker.py  fails calls at once while the store is unavailable; trial calls detect its return
    timeouts.py         time limits that exclude the event loop's own lateness
    retry.py            calls repeated until the store answers, work repeated at intervals
    election.py         elects one process among all that share a store, for upkeep
    checks.py           checks that a store can be relied on: version, eviction, persistence, rights, schema
    schema.py           which releases can work on a store, recorded in it
    bounds.py           bounds the work of one call, and splits larger work
    errors.py           the errors that a call raises while the store is unavailable

Read `connections.py` first. Used by the gateway, the worker, quotas, the global queue and the CLI. The package knows no
budget or job and no key of theirs, and imports no other part of the product.
"""
