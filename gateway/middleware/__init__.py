"""Middleware of every tenant path, from the outside in.

    request_id.py      assigns each request its id, and turns internal errors into responses
    tenant.py          authenticates, adds limits to the headers, formats errors, writes the log line;
                       counts invalid requests against a separate limit
    idempotency.py     runs a request once for all that share an idempotency key
    idempotent_run.py  one such run, its listeners, and its record in the store

The application wraps the endpoints in them. They decide nothing about budgets or queues."""
