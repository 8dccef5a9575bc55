"""How an answer goes out: frames of a stream as they come, or one JSON body at the end; and when its client leaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from gateway import sse

Headers = list[tuple[bytes, bytes]]


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Ends the block with ClientDisconnect as soon as the client goes. Only for a request whose body was read."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in one
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    before = task.cancelling()
    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if gone and task.uncancel() <= before:
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()


class EventStream:
    """A `text/event-stream` answer. Its headers go out with its first frame."""

    def __init__(self, send: Send, headers: Headers, *, write_timeout_s: float) -> None:
        self._send = send
        stream = {"content-type": sse.MEDIA_TYPE, **sse.HEADERS}
        self._headers = [*headers, *((name.encode(), value.encode()) for name, value in stream.items())]
        self._write_timeout_s = write_timeout_s
        self.started = False

    async def write(self, frames: bytes) -> None:
        """Send what is ready. Raises ClientDisconnect where the client takes nothing for too long."""
        try:
            async with asyncio.timeout(self._write_timeout_s):
                if not self.started:
                    self.started = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                await self._send({"type": "http.response.body", "body": frames, "more_body": True})
        except TimeoutError:
            raise ClientDisconnect from None

    async def close(self) -> None:
        """The end of the body."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_json(send: Send, document: object, headers: Headers) -> None:
    """One whole JSON answer."""
    body = msgspec.json.encode(document)
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": [*headers, *fixed]})
    await send({"type": "http.response.body", "body": body})
