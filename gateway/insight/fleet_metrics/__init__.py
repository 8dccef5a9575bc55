"""Metrics of the whole fleet for operators: current values, and histories of a day and a month.

    sums.py          mergeable sums of a span of time: histograms, refusals, lanes, tenants; pure; open it first
    recorder.py      counts this gateway's requests into the current sums
    metrics_store.py the sums of all gateways in the store, and the rings of history
    reporter.py      reports the counts to the store every few seconds, and merges closed slots

Every gateway writes its counts of the current ten-second slot. One gateway, which holds a lease, merges each closed
slot into a ring, and each closed step of a ring into the next ring. Merging is idempotent. Keys under `fl:{figures}:`

| key | type | holds |
| --- | --- | --- |
| `slot:<n>` | hash | gateway → its encoded ReportedState of the n-th ten seconds; expires after ten minutes |
| `ring:<seconds>` | hash | place → number of the step and its encoded Sums, compressed |
| `merged` | hash | ring → number of the last step that was merged into it |
| `merger` | string | the gateway that merges, under a lease of some seconds |"""
