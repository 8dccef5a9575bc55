"""Erases the data of deleted tenants: files, batches, responses, answers, records, jobs, cached prompts and figures.

    rounds.py    which deleted tenants are due, on whichever gateway has the lease; open it first
    steps.py     one pass over one tenant: what is erased, in which order
    build.py     puts them together
    rewrite.py   has the embedded store rewrite its append-only file

The list of deleted tenants is durable and kept with the budgets (`quotas.erasure`). A pass is made of steps that may be
repeated, so a gateway that is killed in one is followed by another. The runtime runs the rounds; the admin API wakes
them, and has the ledger erased.
"""
