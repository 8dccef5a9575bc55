"""WebSockets of the tenants' port (RFC 6455), each message of which is a request of its own.

    handshake.py    the GET that becomes a WebSocket
    connection.py   a connection after its handshake: messages in and out, bounds, and its end
    inbox.py        the messages of a connection that are not yet answered, and their share of memory
    turn.py         one message as the request that it stands for, whose events are messages
    recent.py       the last responses of connections, from which messages can continue

The handshake is a plain GET, with its tenant middleware; frames are read by the library `websockets`."""
