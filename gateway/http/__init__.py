"""HTTP in, SSE out, and what one connection may do.

`server.py` opens the ports; `protocol.py` is a connection's life, drawn in its first lines. `accept.py`,
`connections.py` and `addresses.py` bound how many there are and whose; `body.py`, `body_budget.py` and `json_lists.py`
what they may send, `heads.py` what they may begin. `response.py` and `sse.py` write. Knows nothing of tenants but what
a caller is called.
"""
