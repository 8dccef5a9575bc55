"""The only way to Redis: URLs, connections, clusters, one pipe for requests, a circuit breaker, retries.

`connections.py` first: a store's clients by how patient each is. Gateway and worker call in. Knows nothing of budgets
or jobs; what goes wrong is `trouble.py`'s one error.
"""
