"""Tenants, API keys, token budgets and the usage ledger: exact to the token, under concurrency and crashes.

    store.py                          the interface to budgets: requests, replies and refusals; start here
    limits.py, sizing.py, windows.py  pure arithmetic: rules, refusals and retry times, what a request gets, windows
    redis_store.py, scripts.py        budgets in Redis, one function of `lua/` for each call
    memory_store.py, memory_levels.py the same rules in memory, for tests and for a gateway whose store is unavailable
    escrow/                           rights that a gateway spends without a call for each request
    packing.py, keyspace.py           binary layout of limits and figures; names of Redis keys
    tenants.py, api_keys.py           what operators configure; field_checks.py validates the fields
    prices.py                         token prices by model and lane
    delegated_keys.py                 keys without a secret, for callers with tokens or behind other gateways
    ledger.py, audit.py, upkeep.py    usage, the audit log, and the state and maintenance that gateways share
    idempotency.py                    requests with an idempotency key, and their sealed responses
    erasure.py                        the list of deleted tenants, and erasure of their data in this package
    responses.py                      stored responses, sealed; per-tenant seals for state that clients hold

The gateway calls this package. A state machine test sends the same calls to the Redis store and to the in-memory
store, so a rule must change in both. Budgets use only the store's clock. This package never imports scheduler,
gateway, worker or a web framework."""
