"""What the whole fleet does, in figures that operators see: now, over a day, over a month.

    sums.py        mergeable sums of one stretch of time: histograms, refusals, lanes, tenants; pure
    recorder.py    counts this gateway's requests into the sums of the moment
    figure_store.py  the sums of all gateways in the store, and the rings of history
    teller.py      tells the store every few seconds what was counted, and merges what has closed
    overview.py    the answer of `/admin/v1/overview`

Open `sums.py` first. The runtime runs the teller; the admin API asks. Knows the fleet cache, never a request.

Every gateway writes what it counted in the current slot of ten seconds. One of them, under a lease, merges each slot
that has closed into a ring, and each stretch of a ring that has closed into the next one: merging twice gives the same.
All keys share one hash tag. Under `fl:{figures}:`

| key | type | holds |
| --- | --- | --- |
| `slot:<n>` | hash | gateway → its encoded Told of the n-th ten seconds since 1970; goes after ten minutes |
| `ring:<seconds>` | hash | place → number of the step and its encoded Sums, compressed; RINGS says how many places |
| `merged` | hash | ring → number of the last step that was merged into it |
| `merger` | string | the gateway that merges, for some seconds |
"""
