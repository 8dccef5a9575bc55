"""Frames of a server-sent event stream.

How an answer goes out: frames of a stream as they come, or one JSON body at the end; and when its client leaves.
"""

import asyncio
import re
from collections.abc import Callable

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Send

from fairlane.gateway.http.disconnect import Disconnect

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


def event(name: str, payload: object) -> bytes:
    """One event with a name. `payload`: as in `data`."""
    return b"event: " + name.encode() + b"\n" + data(payload)


def comment(text: str) -> bytes:
    """A line that clients should skip: it tells people and logs what goes on."""
    return b": " + " ".join(text.split()).encode("utf-8") + b"\n\n"


def without_comments(frames: bytes) -> bytes:
    """Whole frames, less the comments among them."""
    if not frames.startswith(b": ") and b"\n: " not in frames:
        return frames
    return b"".join([part for part in re.split(rb"(?<=\n\n)", frames) if not part.lstrip(b"\n").startswith(b": ")])


Headers = list[tuple[bytes, bytes]]
_HEADERS: Headers = [(name.encode(), value.encode()) for name, value in {"content-type": MEDIA_TYPE, **HEADERS}.items()]
Push = Callable[[bytes], bool]


class ClientConnection:
    """A request's client, as a context that ends with ClientDisconnect as soon as the client goes.

    Only for a request whose body was read.
    """

    def __init__(self, disconnect: Disconnect) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        self._task = task
        self._disconnect = disconnect
        self._cancelled_before = task.cancelling()
        self._is_gone = False

    def __enter__(self) -> "ClientConnection":
        self._disconnect.tell(self.gone)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._disconnect.forget(self.gone)
        was_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if was_cancelled and self._is_gone and self._task.uncancel() <= self._cancelled_before:
            raise ClientDisconnect from None

    def complete(self) -> None:
        """The whole answer was sent: a client that leaves from now on ends nothing."""
        self._disconnect.forget(self.gone)

    def gone(self) -> None:
        """It has left, or is treated so: the block ends."""
        if not self._is_gone:
            self._is_gone = True
            self._task.cancel()


class EventStream(ClientConnection):
    """A `text/event-stream` answer to a client. Its headers go out with its first frame.

    Within its context a client that takes nothing for `write_timeout_s` is gone too. One alarm watches over all writes,
    since a stream has one for each token and hardly any of them ever waits.
    """

    def __init__(self, disconnect: Disconnect, send: Send, push: Push, *, write_timeout_s: float) -> None:
        """`push`: sends a further part at once, if it can; what it cannot goes through `send`, which may wait."""
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
        """Headers that are known only now, before the first frame."""
        self._headers = [*headers, *self._headers]

    def put(self, frames: bytes) -> bool:
        """Send what is ready if that needs no waiting; else it is kept for `catch_up`."""
        if not self._unsent and self.started and self._push(frames):
            return True
        self._unsent += frames
        return False

    async def catch_up(self) -> None:
        """Send what was kept."""
        frames, self._writing_since = self._unsent, self._loop.time()
        if not self.started:
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            self.started = True
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})
        self._unsent = self._unsent[len(frames) :]
        self._writing_since = None

    async def write(self, frames: bytes) -> None:
        """Send what is ready, and wait for it where that is needed."""
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
        """The end of the body."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_json(send: Send, document: object, headers: Headers) -> None:
    """One whole JSON answer."""
    body = msgspec.json.encode(document)
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": [*headers, *fixed]})
    await send({"type": "http.response.body", "body": body})
