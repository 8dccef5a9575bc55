"""HTTP: connections and their limits, request bodies, responses and SSE. uvicorn and httptools parse; the limits are
ours.

    ports.py         listening sockets, and how connections are accepted
    protocol.py      requests on a connection; start here
    connection.py    the place, deadlines and end of a connection
    limits.py        bounds on what a client sends, how slowly, and how long it may not read its response
    flow.py          pauses reading for two reasons, and times out clients that do not read
    phases.py        phases of what a connection receives, and the legal moves between them
    turns.py         parsing of reads with many lines, in turns with other connections
    connections.py   connections and incomplete heads: bounds for each address, caller and port
    body.py          reads a body within bounds of bytes and time
    encodings.py     decodes compressed bodies in bounded steps
    json_reader.py lifted.py   the one reader of callers' JSON, and what it extracts from large documents first
    multipart.py     reads a form with a file as it arrives
    body_budget.py   turns at reading large bodies; bytes of bodies in memory
    disconnect.py    notifies a request when its client disconnects
    response.py sse.py   writes responses, whole and streamed
    refusals.py      requests rejected before they reach the application
    request_id.py    the id of each request: the caller's, or a random one

Independent of tenants, apart from a caller's name."""
