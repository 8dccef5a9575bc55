"""Composition: the parts of one gateway process. Each part opens and closes itself.

    resources.py   all parts, in the order of their dependencies
    setup.py       settings, telemetry and id of the process; the background tasks of a part
    stores.py      connections to the stores
    accounts.py    tenants, keys, budgets, prices; authentication of callers
    fleet.py       models, workers and queues
    requests.py    requests, from preparation to settlement, and the recovery of lost ones
    insight.py     request records, fleet metrics, request traces
    batches.py     files, batches, and the export of the ledger
    control.py     operators, the admin API and the console
    ports.py       bounds on connections and bodies

Each part's `running` is a context in which its background tasks run. Building a part does no I/O.
"""
