"""One request's state, from its arrival to its settlement.

    live_request.py   the request and its jobs: what has arrived of each, and its one end
    service_level.py  the lane, tier and deadlines that a request is served under

`pipeline` changes this state, `answers` and `insight` read it. Imports none of them.
"""
