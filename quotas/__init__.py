"""Tenants, API keys, token budgets and the usage ledger: exact to the token, under concurrency and crashes.

`store.py` is the seam: what is asked, answered and refused. `redis_store.py` asks the functions in `lua/`,
`memory_store.py` states the same rules in Python, and a state machine compares the two. `limits.py`, `sizing.py` and
`windows.py` are the arithmetic; `tenants.py`, `api_keys.py`, `ledger.py` and `audit.py` what operators see;
`keyspace.py` the legend of all keys. The gateway calls in. Imports neither scheduler, gateway nor worker.
"""
