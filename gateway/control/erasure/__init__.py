"""Erasure of deleted tenants' data: files, batches, stored and replayable responses, records, jobs, cached prompts and
metrics.

    rounds.py    finds deleted tenants that are due, on the gateway that holds the lease; open it first
    steps.py     one pass over one tenant: what is erased, in which order

The list of deleted tenants is durable and kept with the budgets (`quotas.erasure`). The steps of a pass are idempotent,
so another gateway can repeat the pass of one that was killed. The runtime runs the rounds. The admin API starts a round
early, and erases ledgers."""
