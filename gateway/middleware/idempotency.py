"""`Idempotency-Key`: a request that is sent twice runs once. Wraps a generation endpoint inside the tenant middleware.

An idempotency key belongs to one API key for 24 hours. Requests are the same if they have the same path, body and
scheduling headers."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Send

from fairlane.common.seal import Seal
from fairlane.gateway.answers.chunks import KeepAliveSchedule
from fairlane.gateway.errors import ApiError, error_body, invalid, shown
from fairlane.gateway.http import sse
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.encodings import HEADER as ENCODING
from fairlane.gateway.http.json_reader import scalars
from fairlane.gateway.http.sse import ClientConnection
from fairlane.gateway.insight.telemetry.context import CARRIED
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.middleware.idempotent_run import HEADER, Lost, RecordedChannel, Recording, Run, Runs, not_kept
from fairlane.gateway.pipeline.context import Bounds, Endpoint, RequestContext
from fairlane.gateway.pipeline.prepare import Kind
from fairlane.gateway.request.service_level import DEADLINE_HEADER, LANE_HEADER, TTFT_HEADERS, asks_progress
from fairlane.quotas.idempotency import Name, OwnedRun

# Set on every response except that of the request that ran.
REPLAYED_HEADER = "idempotent-replayed"
REPLAYED = (REPLAYED_HEADER.encode(), b"true")
_STREAM = [(b"content-type", sse.MEDIA_TYPE.encode())] + [(k.encode(), v.encode()) for k, v in sse.HEADERS.items()]


def asks_for_stream(body: bytes) -> bool:
    """Return whether a body asks for a stream. Only meaningful if the body is valid."""
    return b'"stream"' in body and scalars(body, ["stream"]).get("stream") is True


@dataclass(eq=False)
class Listener:
    """Sends a run's response to one client, at the client's pace."""

    run: Run
    send: Send
    wants_stream: bool
    is_first: bool
    schedule: KeepAliveSchedule
    # This client asked for comments, independent of the request that started the run.
    tells_progress: bool
    write_timeout_s: float
    # Builds the last frame of a stream that cannot continue.
    fault: Callable[[ApiError], bytes]
    _started: bool = field(default=False, init=False)

    @property
    def replays(self) -> bool:
        return self._started and not (self.is_first and self.run.is_mine)

    async def listen(self, completed: Callable[[], None]) -> None:
        """Send the response to its end, then call `completed`.

        Raises the error that ended the run, even after a whole response, and ClientDisconnect."""
        recording = self.run.recording
        await self._wait_for_beginning()
        try:
            if recording.status:
                await self._repeat()
                if recording.is_whole:
                    completed()
        except Lost:
            if self._started:
                raise ClientDisconnect from None  # too far behind: the next part was dropped
            raise not_kept() from None
        while not recording.has_ended:
            await recording.changed(None)
        error = recording.error
        if error is None:
            return
        is_cut = self._started and not recording.is_whole
        if is_cut and self.wants_stream and not isinstance(error, ClientDisconnect):
            await self._write(self.fault(shown(error)), is_last=True)
        raise error

    async def _wait_for_beginning(self) -> None:
        """Wait for the response to start. Keep the client's connection alive if a stream runs on another gateway."""
        recording, patience_s, pulse = self.run.recording, self.schedule.first_s, b""
        while not (recording.status or recording.has_ended):
            if await recording.changed(patience_s) or not (self.run.is_elsewhere and self.wants_stream):
                continue
            await self._start(_STREAM, 200)
            if self.tells_progress:
                await self._write(sse.comment("running"), is_last=False)
                patience_s = self.schedule.every_s
            else:
                await self._write(pulse, is_last=False)
                pulse, patience_s = sse.PULSE, self.schedule.keep_alive_s

    async def _repeat(self) -> None:
        recording, position, is_last = self.run.recording, 0, False
        while not is_last:
            chunk, position, is_last = recording.after(position), recording.count, recording.is_whole
            await self._start(recording.headers, recording.status)  # after the first chunk was found to be kept
            if chunk or is_last:
                sent = chunk if self.tells_progress else sse.without_comments(chunk)
                await self._write(sent, is_last=is_last)
            elif recording.has_ended:
                return
            else:
                await recording.changed(None)

    async def _start(self, headers: list[tuple[bytes, bytes]], status: int) -> None:
        if not self._started:
            self._started = True
            sent = [*headers, REPLAYED] if self.replays else headers
            await self.send({"type": "http.response.start", "status": status, "headers": sent})

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        try:
            async with asyncio.timeout(self.write_timeout_s):
                await self.send({"type": "http.response.body", "body": body, "more_body": not is_last})
        except TimeoutError:
            raise ClientDisconnect from None


_HEADER = HEADER.encode()
_WELL_FORMED = re.compile(rb"[\x20-\x7e]{1,255}")
_TERMS = tuple(name.encode() for name in (LANE_HEADER, DEADLINE_HEADER, *TTFT_HEADERS))


@dataclass(eq=False)
class Idempotent:
    """Wraps one endpoint. Requests without the header pass through unchanged."""

    endpoint: Endpoint
    path: str
    runs: Runs
    bounds: Bounds
    telemetry: Telemetry
    kind: Kind[Any]

    def __call__(self, context: RequestContext) -> Awaitable[None]:
        key = key_of(context.headers)
        return self.endpoint(context) if key is None else self._once(key, context)

    async def _once(self, key: bytes, context: RequestContext) -> None:
        caller, exchange, headers, bounds = context.caller, context.exchange, context.headers, self.bounds
        max_bytes = bounds.room.most_bytes(self.kind.most_prompts)
        body = await context.read_body(max_bytes=max_bytes, timeout_s=bounds.body_timeout_s)
        context.headers = [header for header in headers if header[0] != ENCODING]  # the body is decoded now
        looked_at = partial(_fingerprint, self.path, headers, body)
        digest, wants_stream = await bounds.room.run(caller.tenant_id, len(body), looked_at)
        del looked_at
        whole = [body]
        del body  # `perform` takes it from `whole`, so that it is freed before the response ends

        async def perform(owned: OwnedRun, to: Recording, disconnect: Disconnect) -> None:
            caller.once, caller.runs = owned.once, owned.runs
            context.exchange = replace(exchange, disconnect=disconnect, channel=RecordedChannel(whole.pop(), to))
            context.receive, context.send = to.receive, to.send
            try:
                await self.endpoint(context)
            except Exception:
                to.is_rejection = not context.output_tokens
                raise

        tells_progress = asks_progress(headers)  # checked first: an invalid value must not start a run
        name = Name(caller.root, caller.key_id, hashlib.sha256(caller.holder + key).hexdigest())
        seal = Seal(caller.secret)
        fingerprint = seal.mark(digest)
        run, is_first = self.runs.find(name, seal, fingerprint, perform, context.request_id)
        if not is_first:
            whole.clear()
            exchange.release()
        listener = Listener(
            run,
            context.send,
            wants_stream=wants_stream,
            is_first=is_first,
            schedule=bounds.stream_schedule,
            tells_progress=tells_progress,
            write_timeout_s=bounds.write_timeout_s,
            fault=lambda error: self.kind.error_frame(error_body(error, self.path, context.request_id)),
        )
        try:
            with ClientConnection(exchange.disconnect) as client, run.listening():
                await listener.listen(client.complete)
        finally:
            context.lane = _lane(run.recording) or context.lane
            if listener.replays:
                self.telemetry.replays.add(self.path)
                CARRIED.get().span.link(run.traceparent)


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the idempotency key of a request, if any.

    `headers` are the ASGI scope's. Raises ApiError if the key is malformed or given twice."""
    given = None
    for name, value in headers:
        if name == _HEADER:
            given = value.strip() if given is None else b""
    if given is not None and not _WELL_FORMED.fullmatch(given):
        raise invalid(HEADER, f"`{HEADER}` must be sent once, as 1 to 255 printable ASCII characters.")
    return given


def _fingerprint(path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> tuple[bytes, bool]:
    """Return the digest of a request, and whether it asks for a stream."""
    given = [(name, value.strip()) for name, value in headers if name in _TERMS]
    digest = hashlib.sha256()
    for part in (path.encode(), *(part for header in sorted(given) for part in header), b"", body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest(), asks_for_stream(body)


def _lane(recording: Recording) -> str:
    return next((value.decode("latin-1") for name, value in recording.headers if name == _TERMS[0]), "")
