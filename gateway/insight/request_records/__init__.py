"""Records of requests: each request's outcome and the reasons for its latency, for operators and for its tenant.

    record.py        one request's record as stored: bounded, and without any prompt text
    live.py          the record of a running request, built from reports of gateway and workers
    interruptions.py its preemptions and pauses
    time_account.py  the parts of a request's time, which add up to its total on one clock
    recorder.py      the records of this gateway: which are kept, and when they are written; open it first
    storage.py       records in Redis: written in batches, found by several names, newest first; keys: `lua/`
    search.py        lists: filters, order, pages
    views.py         the JSON shapes of records
    why.py           a record as one or two sentences

`gateway.api.generate` opens and ends a record, `gateway.pipeline` reports events and charges. A request costs a few
assignments: a timer writes to the store in batches, and drops what exceeds its bounds."""
