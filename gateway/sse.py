"""Frames of a server-sent event stream."""

import msgspec

MEDIA_TYPE = "text/event-stream"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""No proxy may keep or gather what should arrive at once."""
DONE = b"data: [DONE]\n\n"
"""The last frame of a whole stream, and only of a whole one."""

_encode = msgspec.json.Encoder().encode


def data(payload: object) -> bytes:
    """One event. `payload`: JSON as bytes, without a line break, or what msgspec writes as JSON."""
    return b"data: " + (payload if isinstance(payload, bytes) else _encode(payload)) + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients skip: it keeps the connection alive and tells people and logs what goes on."""
    return b": " + " ".join(text.split()).encode("utf-8") + b"\n\n"
