"""What one request has answered so far, for any number of listeners, each from the beginning and at its own pace."""

import asyncio
from collections.abc import Sequence

from starlette.types import Message

Headers = list[tuple[bytes, bytes]]


class Lost(Exception):
    """What this listener has not heard yet is no longer kept."""


class Spoken:
    """Where an endpoint finds its request, and answers into a recording: as http_answer.Answer does for a client."""

    __slots__ = ("_body", "_recording")

    def __init__(self, body: bytes, recording: "Recording") -> None:
        self._body: bytes | None = body
        self._recording = recording

    def take_body(self) -> bytes | None:
        """All of it has come. None once it was taken."""
        body, self._body = self._body, None
        return body

    def push(self, body: bytes) -> bool:
        """A further part of a body that has begun."""
        self._recording.say(body, is_last=False)
        return True


class Recording:
    """The ASGI messages of one answer. Writing to it never waits: who listens too slowly loses it, and no other."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of a body, that are kept; from then on the oldest are forgotten."""
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._forgotten = 0
        """Chunks, from the first."""
        self._kept_bytes = 0
        self._news = asyncio.Event()
        self.status = 0
        """0: not begun."""
        self.headers: Headers = []
        self.is_whole = False
        """All of the body was said."""
        self.has_ended = False
        """Nothing comes any more."""
        self.error: Exception | None = None
        """What it ended with."""

    @property
    def count(self) -> int:
        """Chunks so far."""
        return self._forgotten + len(self._chunks)

    @property
    def body(self) -> bytes | None:
        """What was said; None where not all of it is kept."""
        return None if self._forgotten or not self.is_whole else b"".join(self._chunks)

    async def send(self, message: Message) -> None:
        """One ASGI message of the answer."""
        if message["type"] == "http.response.start":
            self.begin(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self.say(message.get("body", b""), is_last=not message.get("more_body", False))

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The answer's head."""
        self.status, self.headers = status, list(headers)
        self._tell()

    def say(self, chunk: bytes, *, is_last: bool) -> None:
        """A part of the body."""
        if chunk:
            self._chunks.append(chunk)
            self._kept_bytes += len(chunk)
        while self._kept_bytes > self._max_bytes:
            self._kept_bytes -= len(self._chunks.pop(0))
            self._forgotten += 1
        self.is_whole = is_last
        self._tell()

    def end(self, error: Exception | None = None) -> None:
        """Nothing comes any more; only the first end counts. Of an error it is kept what was wrong, not where: those
        frames hold the request's body."""
        if not self.has_ended:
            if error is not None:
                error = error.with_traceback(None)
                error.__context__ = None
            self.has_ended, self.error = True, error
            self._tell()

    def after(self, position: int) -> bytes:
        """What was said from the chunk `position` on. Raises Lost."""
        if position < self._forgotten:
            raise Lost
        return b"".join(self._chunks[position - self._forgotten :])

    async def changed(self, within_s: float | None) -> bool:
        """Wait for what comes next; False where nothing came in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
