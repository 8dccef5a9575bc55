"""Direct links between workers and gateways. They carry tokens, so that the store carries none.

    frames.py        the messages of a link, and how they are framed
    handshake.py     both ends prove that they know the fleet's secret
    connection.py    one authenticated connection: frames in and out, pings
    listener.py      the gateway's end: accepts workers
    unix_sockets.py  sockets in a shared folder, and the removal of dead ones
    tls.py           mutual TLS
    dialer.py        the worker's end: dials a gateway, and redials it when the link is lost

A worker dials a gateway when it first has a job of it; one link carries all their jobs, each as a numbered stream.
`Open` names the job and epoch of a lease. The gateway raises the job's fence to that epoch and answers with the tokens
that it has, so that a worker that takes a job over continues from what the client has received. Start with `frames.py`.
Imports only `scheduler.protocol` and the errors of `store`."""
