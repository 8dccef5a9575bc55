"""The operators' API: tenants, keys, budgets, usage, workers; under the admin key, a token or a session, by role.

`routes.py` lists every route: open it first. `router.py` runs one call: who asks, input, ETag, audit, errors.

    tenants.py  keys.py        create, read, change, delete
    usage.py                   spend by lane, model, key and day; the ledger as CSV or JSON lines
    prices.py                  what tokens cost; a month of all tenants, for chargeback
    fleet.py                   models, workers, drain and undrain
    overview.py  live.py       what the console shows first, of the whole fleet; the same as it changes
    blocks.py                  the map of KV blocks of each worker
    history.py                 the same over a day or a month
    tokens.py                  operators' tokens, and who calls
    batches.py                 batches that have not ended
    requests.py                requests that run and that ended, and why they went as they did
    traces.py                  request traces, and simulations of them
    explain.py                 why a request of this tenant would be refused or wait now
    inputs.py  views.py        what is read from a body, and what is answered

Called by the application alone. Knows quotas, the fleet cache and the fleet's figures, never a request on its way.
"""
