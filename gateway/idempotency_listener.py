"""One client that hears the answer of a run: what was said so far, then what comes; and that it lives meanwhile."""

import asyncio

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Send

from gateway import sse
from gateway.errors import ApiError, error_body, internal_error
from gateway.idempotency_recording import Lost
from gateway.idempotency_runs import Run, not_kept
from gateway.pieces import Rhythm

REPLAYED_HEADER = "idempotent-replayed"
"""On every answer but that of the request which ran."""
_REPLAYED = (REPLAYED_HEADER.encode(), b"true")
_STREAM = [(b"content-type", sse.MEDIA_TYPE.encode())] + [(k.encode(), v.encode()) for k, v in sse.HEADERS.items()]


class _Asked(msgspec.Struct):
    """What matters here of a body."""

    stream: object = False


def asks_for_stream(body: bytes) -> bool:
    """Whether a request's body does. Of use only where it has been let in as well."""
    if b'"stream"' not in body:
        return False
    try:
        return msgspec.json.decode(body, type=_Asked).stream is True
    except (msgspec.MsgspecError, RecursionError):
        return False


class Listener:
    """Passes a run's answer on to one client, at the client's pace."""

    def __init__(
        self,
        run: Run,
        send: Send,
        *,
        wants_stream: bool,
        is_first: bool,
        rhythm: Rhythm,
        tells_progress: bool,
        write_timeout_s: float,
    ) -> None:
        """`wants_stream`: as the request's body asks. `is_first`: its request began the run. `rhythm`: for a stream
        that waits. `tells_progress`: this client asked for comments, whatever the one did that began the run."""
        self._run = run
        self._recording = run.recording
        self._send = send
        self._wants_stream = wants_stream
        self._is_first = is_first
        self._rhythm = rhythm
        self._tells_progress = tells_progress
        self._write_timeout_s = write_timeout_s
        self._started = False

    @property
    def replays(self) -> bool:
        """It has begun to tell the answer of an earlier request."""
        return self._started and not (self._is_first and self._run.is_mine)

    async def listen(self) -> None:
        """To the end. Raises what the run ended with, also after all of its answer; ClientDisconnect."""
        await self._wait_for_beginning()
        try:
            if self._recording.status:
                await self._repeat()
        except Lost:
            if self._started:
                raise ClientDisconnect from None  # too far behind: what comes next is no longer kept
            raise not_kept() from None
        while not self._recording.has_ended:
            await self._recording.changed(None)
        error = self._recording.error
        if error is None:
            return
        if self._started and not self._recording.is_whole:
            await self._fail(error)
        raise error

    async def _wait_for_beginning(self) -> None:
        """A stream that runs elsewhere keeps its client's connection alive; all else waits in silence, or for its own
        generation to speak."""
        recording, patience_s, pulse = self._recording, self._rhythm.first_s, b""
        while not (recording.status or recording.has_ended):
            if await recording.changed(patience_s) or not (self._run.is_elsewhere and self._wants_stream):
                continue
            await self._start(_STREAM, 200)
            if self._tells_progress:
                await self._write(sse.comment("running"), is_last=False)
                patience_s = self._rhythm.every_s
            else:
                await self._write(pulse, is_last=False)
                pulse, patience_s = sse.PULSE, self._rhythm.pulse_s

    async def _repeat(self) -> None:
        recording, position, is_last = self._recording, 0, False
        chunk = recording.after(position)
        await self._start(recording.headers, recording.status)
        while not is_last:
            chunk, position, is_last = recording.after(position), recording.count, recording.is_whole
            if chunk or is_last:
                told = chunk if self._tells_progress else sse.without_comments(chunk)
                await self._write(told, is_last=is_last)
            elif recording.has_ended:
                return
            else:
                await recording.changed(None)

    async def _fail(self, error: Exception) -> None:
        """A stream that has begun ends with a frame that says what went wrong."""
        if self._wants_stream and not isinstance(error, ClientDisconnect):
            told = error if isinstance(error, ApiError) else internal_error()
            await self._write(sse.data(error_body(told)), is_last=True)

    async def _start(self, headers: list[tuple[bytes, bytes]], status: int) -> None:
        if not self._started:
            self._started = True
            told = [*headers, _REPLAYED] if self.replays else headers
            await self._send({"type": "http.response.start", "status": status, "headers": told})

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        except TimeoutError:
            raise ClientDisconnect from None
