"""Tenants, API keys, token budgets and the usage ledger: exact to the token, under concurrency and crashes.

    store.py                          the seam: what is asked, answered and refused; open this first
    limits.py, sizing.py, windows.py  the arithmetic: rules, what a request gets, minutes, days and months
    redis_store.py, scripts.py        budgets in Redis, one function of `lua/` for each call
    memory_store.py, memory_levels.py the same rules in memory, for tests and for a gateway without its store
    packing.py, keyspace.py           how limits and figures are packed, and under which keys
    tenants.py, api_keys.py           what operators set; field_checks.py what a field may be
    prices.py                         what tokens cost, by model and lane
    delegated_keys.py                 keys that are nobody's secret, for callers by tokens or through other gateways
    ledger.py, audit.py, upkeep.py    what was used, who changed what, and what gateways look after together
    idempotency.py                    requests that carry an idempotency key, and their sealed answers
    erasure/                          the list of deleted tenants, and what of them is erased here
    responses.py, seals.py            responses that tenants keep for a while, sealed; what they carry away sealed; the
                                      secret that keys names in request traces

The gateway calls in. A state machine sends the Redis store and its twin in memory the same calls: a rule that changes
in one changes in the other. Budgets know the store's clock alone. Never imports scheduler, gateway, worker or a web
framework.
"""
