"""What became of each request and why: the decision trace, kept for operators and for the tenant whose request it was.

    record.py        one request's record: what is stored of it; bounded, and without a word of any prompt
    live.py          a record in the making: what gateway and workers say of a request while it runs
    time_account.py  where a request's time went: parts that add up to its total, on one clock
    recorder.py      the records of this gateway: which are kept, and when they are written; open it first
    storage.py       records in Redis: written in batches, found by several names, read newest first
    search.py        lists: filters, order, pages
    why.py           a record in one or two sentences
    keys.py          Redis keys; `lua/` has the scripts

`gateway.api.generate` opens and ends a record, `gateway.requests` tells it events and charges, and the admin API and
`GET /v1/requests/{id}` read. Nothing here is on a request's way but a few assignments: what is written to the store
goes with a timer, a batch at a time, and is dropped where there is too much of it. Never imports `gateway.api`.
"""
