"""The real scheduler in virtual time: `simulate.py` first. The same inputs and seed give the same records.

    trace.py                 request traces in three forms, and their bad rows
    workload.py              arrivals, what hardware takes, and a record of each request
    synthetic_tenants.py     whose requests a trace's are, and what they were promised, from a seed
    calibration.py           a worker in figures: measured, or from a data sheet
    simulate.py              the event loop: arrivals, queue, workers, deaths
    cruise.py                steps of a simulated worker that need no plan
    autoscaling.py           workers that come and go with the load, by a HorizontalPodAutoscaler's rule
    simulated_admission.py   admission as gateways decide it, on what workers last reported
    scenario.py              one simulated installation under a trace
    sizing.py                the smallest number of workers that keeps the lanes' targets, by search
    advice.py                what else could be set, and what that sheds or delays
    headroom.py              how near tenants came to their limits in a recorded trace
    results.py               latencies, promises kept, goodput and service gaps

`fairlane simulate` and `advise`, the gateway's child for the console, the benchmarks and tests call in; a worker's
`/costs` is a `calibration.py` document. Never imports gateway, worker or quotas, and never sleeps.
"""
