"""One request's state, from its arrival to its settlement.

    live_request.py   the request and its jobs: the output received so far, and the end
    service_level.py  the lane, tier and deadlines of a request

`pipeline` changes this state, `answers` and `insight` read it. Imports none of them.
"""
