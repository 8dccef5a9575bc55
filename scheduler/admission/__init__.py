"""Deadline admission. Start with `decide.py`: guaranteed, best effort or refused, with the reason.

    decide.py          the decision on one request
    open_requests.py   the gateway's admitted requests that have not ended, and its reports to other gateways
    demand.py          the cost of a request, and the test of whether all guarantees can still be kept
    eta.py             expected remaining wait of a waiting request

Each gateway has one `OpenRequests` per queue, and so do the simulator's gateways. Gateways report to each other
through the queue. The queue records guarantees given between two reports (`queue.promises`). There is no I/O and no
clock: workers' last reports and the time are arguments. Never imports gateway, worker or quotas."""
