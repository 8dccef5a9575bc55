"""Erases what deleted tenants had: the durable list of them, and what stands with the budgets.

    tenant_delete ──> listed, due at once ──pass──> due SETTLED_S after the deletion ──last pass──> unlisted

A pass may be cut off anywhere and repeated by any gateway: every step erases whatever it still finds. Later passes
find what was on its way when the tenant was deleted: the end of a request, an upload, a batch that is being cancelled.
The ledger stays until an operator has it erased.

    listed.py    which tenants are due
    budgets.py   API keys, answers that were kept for them, responses
    ledger.py    the ledger, what limits counted, names in the audit log, and last the id itself
"""
