"""HTTP: connections and their limits, request bodies, responses and SSE. uvicorn and httptools parse; the limits are
ours.

    ports.py         listening sockets, and how connections are accepted
    protocol.py      the life of a connection, drawn in its first lines: open it first
    limits.py        bounds on what a client sends, how slowly, and how long it may not read its response
    flow.py          pauses reading for two reasons, and times out clients that do not read
    turns.py         parsing of reads with many lines, in turns with other connections
    upgrade.py       requests that ask for an upgrade, served in HTTP/1.1
    connections.py   connections and incomplete heads: bounds for each address, caller and port
    body.py          reads a body within bounds of bytes and time
    json_reader.py lifted.py   the one reader of callers' JSON, and what it extracts from large documents first
    multipart.py     reads a form with a file as it arrives
    body_budget.py   bytes of bodies in memory, by tenant and process; returns freed memory to the system
    disconnect.py    notifies a request when its client disconnects
    response.py sse.py   writes responses, whole and streamed
    static.py        files that browsers load
    refusals.py      requests rejected before they reach the application
    request_id.py    the id of each request: the caller's, or a random one

Independent of tenants, apart from a caller's name."""
