"""Erasure of deleted tenants: the durable list of them, and their data in this package.

    tenant_delete ──> listed, due at once ──pass──> due SETTLED_S after the deletion ──last pass──> unlisted

Any gateway may run a pass, and a pass may be interrupted and repeated: every step erases whatever it finds. Later
passes find writes that were in flight when the tenant was deleted: the end of a request, an upload, the cancellation
of a batch. The ledger stays until an operator asks for its erasure.

    listed.py    the list of tenants that are due
    budgets.py   API keys, their idempotency records, responses
    ledger.py    the ledger, limit figures, audit entries, and finally the id itself
"""
