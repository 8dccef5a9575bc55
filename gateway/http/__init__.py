"""HTTP in, SSE out, and what one connection may do. uvicorn and httptools do the parsing; the limits are ours.

    server.py        uvicorn as this gateway runs it, and the shutdown in steps
    ports.py         sockets, and how connections are accepted
    protocol.py      a connection's life, drawn in its first lines: open it first
    limits.py patience.py   what it may send and how slowly, and how long it may take nothing of its answer
    turns.py flow.py  reads of many lines: parsed in turns with other connections, which are not read meanwhile
    upgrade.py       requests that ask to upgrade: served in HTTP/1.1
    connections.py   how many connections an address and a tenant may have, and how many heads in the making
    body.py          reading a body within bounds of bytes and time
    json_reader.py lifted.py   the one reader of callers' JSON, and what it takes out of large documents first
    multipart.py     reading a form with a file as it comes
    body_budget.py   bytes of bodies in flight, by tenant and process, and giving memory back
    disconnect.py    how a request hears that its client has left
    response.py sse.py   writing answers, whole and streamed
    static.py        files that browsers load
    refusals.py      what is refused before the application sees it

Knows nothing of tenants but what a caller is called.
"""
