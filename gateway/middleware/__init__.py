"""Around every tenant path, from the outside in.

    request_id.py      gives each request its id, and answers our own faults
    tenant.py          authenticates, tells limits in headers, answers refusals in their form, writes the record;
                       counts refused requests against a limit of their own
    idempotency.py     runs a request once for all who send the same key
    idempotent_run.py  what the store keeps of such a run

The application puts them around the endpoints. They decide nothing about budgets or queues.
"""
