"""Frames of a server-sent event stream."""

import re

import msgspec

MEDIA_TYPE = "text/event-stream"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""No proxy may keep or gather what should arrive at once."""
DONE = b"data: [DONE]\n\n"
"""The last frame of a whole stream, and only of a whole one."""

PULSE = b"\n"
"""Keeps the connection alive, and is no line that a client could take for something: even a comment of its own makes
some clients lose what follows."""

_encode = msgspec.json.Encoder().encode


def data(payload: object) -> bytes:
    """One event. `payload`: JSON as bytes, without a line break, or what msgspec writes as JSON."""
    return b"data: " + (payload if isinstance(payload, bytes) else _encode(payload)) + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients should skip: it tells people and logs what goes on."""
    return b": " + " ".join(text.split()).encode("utf-8") + b"\n\n"


def without_comments(frames: bytes) -> bytes:
    """Whole frames, less the comments among them."""
    if not frames.startswith(b": ") and b"\n: " not in frames:
        return frames
    return b"".join([part for part in re.split(rb"(?<=\n\n)", frames) if not part.lstrip(b"\n").startswith(b": ")])
