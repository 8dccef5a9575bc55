"""The admin API: tenants, keys, budgets, usage and workers, for operators with the admin key, a token or a session.

`operation.py` explains how an operation is declared: open it first. Each is declared where its handler is.

    tenants.py  keys.py        create, read, change, delete; erase a deleted tenant
    usage.py                   spend by lane, model, key and day; the ledger as CSV or JSON lines; the audit log
    prices.py                  token prices; a month of all tenants, for chargeback
    fleet.py                   workers, lanes, drain and undrain; requests and open batches
    overview.py  live.py       the console's first page, over the whole fleet; the same as a stream of events
    models.py                  one model on it: what it is, and its load by lane
    alarms.py                  what needs attention, in words: who, why, and since when
    blocks.py                  the map of KV blocks of each worker
    history.py                 the overview's figures over 15 minutes, a day or a month
    search.py                  a search over requests, tenants, keys, workers and models
    tokens.py                  operator tokens, and the calling operator
    traces.py                  request traces, and simulations of them
    explain.py                 a dry run: why a request of a tenant would be refused or wait now
    inputs.py  views.py        request bodies and queries; response shapes
    call.py                    the context of a handler; `ETag` and `If-Match`
    routes.py  router.py       all operations; runs one call: role, input, response, errors

Only the application calls this package. It uses quotas, the fleet cache and the fleet's figures, never a running
request."""
