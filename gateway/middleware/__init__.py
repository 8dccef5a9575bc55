"""Around every tenant path.

`request_id.py` gives each request its id and catches our own faults, `tenant.py` says who asks and answers refusals in
their form, `idempotency.py` and `idempotent_run.py` run a request once for all who send the same, `refused_requests.py`
counts what was wrong.
"""
