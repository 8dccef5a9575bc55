"""May this request be promised its deadline? `decide.py` first: guaranteed, best effort or refused, and why.

    decide.py          the verdict on one request
    open_requests.py   what this gateway has admitted and not yet seen end, and what it tells the others of that
    demand.py          what a request costs, and the test whether all that was promised still fits
    eta.py             how long a request that waits still waits

One gateway keeps one `OpenRequests` for each queue; the simulator's gateways are the same. Gateways report to each
other through the queue, and what none of them can know of the others in time is booked there (`queue.promises`). No
I/O and no clock: workers' last reports and the time are arguments. Never imports gateway, worker or quotas.
"""
