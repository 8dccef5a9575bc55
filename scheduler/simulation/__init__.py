"""The real scheduler in virtual time. Start with `simulate.py`. The same inputs and seed give the same records.

    trace.py                 request traces in three formats, and their bad rows
    workload.py              arrivals, hardware costs, and a record of each request
    synthetic_tenants.py     tenants and targets for a trace's requests, from a seed
    calibration.py           the costs and sizes of a worker: measured, or from a data sheet
    simulate.py              the event loop: arrivals, queue, workers
    cruise.py                steps of a simulated worker that need no plan
    simulated_admission.py   admission as a gateway decides it
    scenario.py              one simulated installation under a trace
    sizing.py                search for the smallest number of workers that meets the lanes' targets
    advice.py                alternative settings, and the requests that they reject or delay
    headroom.py              how close tenants came to their limits in a recorded trace
    results.py               latencies, attainment, goodput and service gaps
    fleet/                   many workers of fixed steps, with gateways, the store's cores and the queue's shards

Used by `fairlane simulate` and `advise`, the gateway's child process for the console, the benchmarks and tests; a
worker's `/costs` is a `calibration.py` document. Never imports gateway, worker or quotas, and never sleeps."""
