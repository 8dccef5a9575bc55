"""Server-sent events, and responses as they are sent: frames of a stream, or one JSON body at the end."""

import asyncio
import re
from collections.abc import Callable

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Send

from fairlane.gateway.http.disconnect import Disconnect

MEDIA_TYPE = "text/event-stream"
# Proxies must neither cache nor buffer a stream.
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
# The last frame of a complete stream, and only of a complete one.
DONE = b"data: [DONE]\n\n"

# Keeps the connection alive. It contains nothing that a client could interpret: even a comment makes some clients lose
# the following data.
PULSE = b"\n"

_encode = msgspec.json.Encoder().encode


def data(payload: object) -> bytes:
    """Return one event. `payload` is JSON as bytes, without a line break, or a value to encode as JSON."""
    return b"data: " + (payload if isinstance(payload, bytes) else _encode(payload)) + b"\n\n"


def event(name: str, payload: object) -> bytes:
    """Return one named event. `payload` is as for `data`."""
    return b"event: " + name.encode() + b"\n" + data(payload)


def comment(text: str) -> bytes:
    """Return a comment, which clients should skip: information for users and logs."""
    return b": " + " ".join(text.split()).encode("utf-8") + b"\n\n"


def without_comments(frames: bytes) -> bytes:
    """Remove the comments from whole frames."""
    if not frames.startswith(b": ") and b"\n: " not in frames:
        return frames
    return b"".join([part for part in re.split(rb"(?<=\n\n)", frames) if not part.lstrip(b"\n").startswith(b": ")])


Headers = list[tuple[bytes, bytes]]
_HEADERS: Headers = [(name.encode(), value.encode()) for name, value in {"content-type": MEDIA_TYPE, **HEADERS}.items()]
Push = Callable[[bytes], bool]


class ClientConnection:
    """Raises ClientDisconnect in its block when the client disconnects. Enter it after the request's body has been
    read."""

    def __init__(self, disconnect: Disconnect) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task
        self._task = task
        self._disconnect = disconnect
        self._cancelled_before = task.cancelling()
        self._is_gone = False

    def __enter__(self) -> "ClientConnection":
        self._disconnect.notify(self.gone)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._disconnect.forget(self.gone)
        was_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if was_cancelled and self._is_gone and self._task.uncancel() <= self._cancelled_before:
            raise ClientDisconnect from None

    def complete(self) -> None:
        self._disconnect.forget(self.gone)

    def gone(self) -> None:
        """Cancel the block: the client has disconnected, or is treated as if it had."""
        if not self._is_gone:
            self._is_gone = True
            self._task.cancel()


class EventStream(ClientConnection):
    """A `text/event-stream` response. Its headers are sent with its first frame.

    In its context, a client that reads nothing for `write_timeout_s` counts as gone. One timer covers all writes, since
    a stream has one write per token, and almost none of them waits."""

    def __init__(self, disconnect: Disconnect, send: Send, push: Push, *, write_timeout_s: float) -> None:
        """`push` writes without waiting, if it can; otherwise `send` is used, which may wait."""
        super().__init__(disconnect)
        self._send = send
        self._push = push
        self._headers = _HEADERS
        self._write_timeout_s = write_timeout_s
        self._loop = self._task.get_loop()
        self._unsent = b""
        self._writing_since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self.started = False

    def __enter__(self) -> "EventStream":
        super().__enter__()
        self._alarm = self._loop.call_later(self._write_timeout_s, self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        super().__exit__(kind)

    def lead_with(self, headers: Headers) -> None:
        self._headers = [*headers, *self._headers]

    def put(self, frames: bytes) -> bool:
        """Write frames if that needs no waiting. Otherwise keep them for `catch_up` and return False."""
        if not self._unsent and self.started and self._push(frames):
            return True
        self._unsent += frames
        return False

    async def catch_up(self) -> None:
        frames, self._writing_since = self._unsent, self._loop.time()
        if not self.started:
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            self.started = True
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})
        self._unsent = self._unsent[len(frames) :]
        self._writing_since = None

    async def write(self, frames: bytes) -> None:
        if not self.put(frames):
            await self.catch_up()

    def _look(self) -> None:
        now_s = self._loop.time()
        since_s = now_s if self._writing_since is None else self._writing_since
        if now_s - since_s >= self._write_timeout_s:
            self.gone()
        else:
            self._alarm = self._loop.call_at(since_s + self._write_timeout_s, self._look)

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_json(send: Send, document: object, headers: Headers) -> None:
    """Send one whole JSON response."""
    body = msgspec.json.encode(document)
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": [*headers, *fixed]})
    await send({"type": "http.response.body", "body": body})
