"""Runs of requests with an idempotency key: one `Run` for each on this gateway, in its own task.

A completed run is kept in the store and replayed; a rejection is released, so that a retry runs. A stream that an error
ends counts as completed if it has output, because the output was charged; otherwise as a rejection."""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from starlette.requests import ClientDisconnect
from starlette.types import Message

from fairlane.common.seal import Seal
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.insight.telemetry.context import CARRIED
from fairlane.gateway.middleware.request_id import log_fault
from fairlane.quotas.idempotency import EndedRun, IdempotencyRecords, Name, OwnedRun
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import until_answered

Headers = list[tuple[bytes, bytes]]


class Lost(Exception):
    """Raised for a listener that is so far behind that its next part was dropped."""


class RecordedChannel:
    """The channel of a request under an idempotency key: its body, and a recording instead of a client."""

    __slots__ = ("_body", "_recording")

    def __init__(self, body: bytes, recording: "Recording") -> None:
        self._body: bytes | None = body
        self._recording = recording

    def take_body(self) -> bytes | None:
        body, self._body = self._body, None
        return body

    def push(self, body: bytes) -> bool:
        self._recording.say(body, is_last=False)
        return True


class Recording:
    """The ASGI messages of one response. Writing never blocks: a listener that falls too far behind is dropped."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` of the body are kept. Above it the oldest are dropped, once waiting listeners have read them."""
        self._max_bytes = max_bytes
        self._chunks: deque[bytes] = deque()
        self._forgotten = 0
        self._kept_bytes = 0
        self._news = asyncio.Event()
        self.status = 0
        self.headers: Headers = []
        self.is_whole = False
        # A stream that ended with an error before its first token.
        self.is_rejection = False
        self.has_ended = False
        self.error: Exception | None = None

    @property
    def count(self) -> int:
        return self._forgotten + len(self._chunks)

    @property
    def body(self) -> bytes | None:
        is_kept = self.is_whole and not self._forgotten and self._kept_bytes <= self._max_bytes
        return b"".join(self._chunks) if is_kept else None

    async def receive(self) -> Message:
        return {"type": "http.disconnect"}  # the body was read

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begin(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self.say(message.get("body", b""), is_last=not message.get("more_body", False))

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, list(headers)
        self._notify()

    def say(self, chunk: bytes, *, is_last: bool) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._kept_bytes += len(chunk)
        self.is_whole = is_last
        self._notify()
        if self._kept_bytes > self._max_bytes:  # listeners that kept up read it first: they were woken before
            asyncio.get_running_loop().call_soon(self._trim)

    def end(self, error: Exception | None = None) -> None:
        """End the recording; only the first call counts.

        The error is stripped of its traceback, whose frames hold the request's body."""
        if not self.has_ended:
            if error is not None:
                error = error.with_traceback(None)
                error.__context__ = None
            self.has_ended, self.error = True, error
            self._notify()

    def after(self, position: int) -> bytes:
        if position < self._forgotten:
            raise Lost
        newest_first = islice(
            reversed(self._chunks), self.count - position
        )  # a listener usually needs only the last few
        return b"".join(reversed([*newest_first]))

    async def changed(self, within_s: float | None) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _trim(self) -> None:
        while self._kept_bytes > self._max_bytes:
            self._kept_bytes -= len(self._chunks.popleft())
            self._forgotten += 1

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


# Runs the endpoint into the recording, until it ends or the disconnect is reported.
Perform = Callable[[OwnedRun, Recording, Disconnect], Awaitable[None]]

# Runs without listeners of one API key. Above this, a run ends as soon as its client disconnects.
MOST_ABANDONED = 100
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
HEADER = "idempotency-key"
# Stored with a response's headers, for the trace links of its replays. Never sent to a client.
_TRACE = "traceparent"


conflict = partial(ApiError, "This idempotency key was used for another request.", "idempotency_conflict", HEADER)
not_kept = partial(
    ApiError,
    "The request of this idempotency key was served and charged, but its response is no longer kept. "
    "Use another key to run it again.",
    "idempotency_conflict",
    HEADER,
)


class Run:
    """One run of a request, and the number of its listeners."""

    def __init__(
        self, runs: "Runs", name: Name, seal: Seal | None, fingerprint: str, perform: Perform, request_id: str
    ) -> None:
        """`seal` is the caller's API key's. `request_id` is that of the request that started the run, for the log."""
        self._seal = seal
        self._runs = runs
        self._records = runs.records
        self._perform = perform
        self._request_id = request_id
        self._owner = secrets.token_hex(8)
        self._disconnect = Disconnect(lambda: None)
        self._grace: asyncio.TimerHandle | None = None
        self._grace_s = runs.grace_s
        self.listeners = 0
        self.name = name
        self.fingerprint = fingerprint
        self.recording = Recording(runs.max_answer_bytes)
        # Trace context of the request that runs or ran; empty if unknown or not traced.
        carried = CARRIED.get()
        self.traceparent = carried.traceparent if carried.span.is_recording else ""
        # It runs here, for the first time.
        self.is_mine = False
        # It was found running on another gateway.
        self.is_elsewhere = False
        # It is ending. The next request with the key starts a new run.
        self.is_given_up = False

    @property
    def is_abandoned(self) -> bool:
        return self._grace is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.listeners += 1
        self._stop_grace()
        try:
            yield
        finally:
            self.listeners -= 1
            if not (self.listeners or self.recording.has_ended):
                self._abandon()

    async def live(self) -> None:
        try:
            begun = await self._begin()
            if isinstance(begun, OwnedRun):
                await self._run(begun)
            else:
                self._replay(begun)
        except STORE_ERRORS as error:  # the store may have started the run anyway
            self.recording.end(error)
            await self._release()
        except Exception as error:  # noqa: BLE001 - each remaining listener raises it
            self._report(error)
            self.recording.end(error)
        finally:
            self.recording.end(ClientDisconnect())
            self._stop_grace()

    async def _begin(self) -> OwnedRun | EndedRun:
        pause_s = _FIRST_PAUSE_S
        name, records = self.name, self._records
        while (found := await records.begin(name, self._owner, self.fingerprint, self._seal)) == "running":
            self.is_elsewhere = True
            refusal = self._runs.refusal()
            if refusal is not None:
                raise refusal
            await asyncio.sleep(pause_s)
            if not self.listeners:
                raise ClientDisconnect
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if found == "conflict":
            raise conflict()
        return found

    def _replay(self, ended: EndedRun) -> None:
        if ended.body is None:
            raise not_kept()
        kept = dict(ended.headers)
        self.traceparent = kept.pop(_TRACE, "")
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in ended.headers if name in kept]
        self.recording.begin(ended.status, headers)
        self.recording.say(ended.body, is_last=True)
        self.recording.end()

    async def _run(self, owned: OwnedRun) -> None:
        self.is_mine, self.is_elsewhere = True, False
        failure: Exception | None = None
        renewing = asyncio.create_task(self._renew())
        try:
            await self._perform(owned, self.recording, self._disconnect)
        except Exception as error:  # noqa: BLE001 - each remaining listener raises it
            failure = error
            self._report(error)
        finally:
            renewing.cancel()
        if self.recording.is_whole and 200 <= self.recording.status < 300 and not self.recording.is_rejection:
            self.recording.end(failure)
            await self._keep()
        else:
            await self._release()  # first: a client may retry at once after a rejection
            self.recording.end(failure)

    async def _renew(self) -> None:
        held = True
        while held:
            await asyncio.sleep(self._runs.lease_s / 3)
            with suppress(*STORE_ERRORS):  # retried next time, before the lease expires
                held = await self._records.renew(self.name, self._owner)
        self._grace_s = 0.0  # another gateway runs it now: it continues here only for its listeners
        if self.is_abandoned:
            self._give_up()

    async def _keep(self) -> None:
        recording = self.recording
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in recording.headers)
        if self.traceparent:
            headers = (*headers, (_TRACE, self.traceparent))
        ended = EndedRun(status=recording.status, headers=headers, body=recording.body)
        await until_answered(lambda: self._records.finish(self.name, self._owner, ended, self._seal))

    async def _release(self) -> None:
        with suppress(*STORE_ERRORS):  # else it is free once its lease has expired
            await self._records.release(self.name, self._owner)

    def _abandon(self) -> None:
        abandoned, key_id = self._runs.abandoned, self.name.key_id
        if self._grace_s and abandoned[key_id] < MOST_ABANDONED:
            self._grace = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)
            abandoned[key_id] += 1
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._stop_grace()
        self.is_given_up = True
        self._disconnect.left()

    def _stop_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
            abandoned, key_id = self._runs.abandoned, self.name.key_id
            abandoned[key_id] -= 1
            if not abandoned[key_id]:
                del abandoned[key_id]

    def _report(self, failure: Exception) -> None:
        is_told = self.listeners and not self.recording.has_ended
        if not is_told and not isinstance(failure, (ApiError, ClientDisconnect, *STORE_ERRORS)):
            log_fault(self._request_id, failure)


@dataclass(eq=False)
class Runs:
    """All runs of this gateway. `aclose` ends those that remain.

    `refusal` returns the error for new requests during a shutdown. `lease_s` is that of the records."""

    records: IdempotencyRecords
    refusal: Callable[[], ApiError | None]
    grace_s: float
    lease_s: float
    max_answer_bytes: int
    # By name and fingerprint. Only the store knows which request a key belongs to.
    _runs: dict[tuple[Name, str], Run] = field(default_factory=dict, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    # Runs without listeners by API key. Bounded, because a thousand clients may disconnect at once.
    abandoned: Counter[str] = field(default_factory=Counter, init=False)

    def find(
        self, name: Name, seal: Seal | None, fingerprint: str, perform: Perform, request_id: str
    ) -> tuple[Run, bool]:
        run = self._runs.get((name, fingerprint))
        if run is not None and not run.is_given_up:
            return run, False
        run = self._runs[name, fingerprint] = Run(self, name, seal, fingerprint, perform, request_id)
        task = asyncio.create_task(run.live(), name="idempotent request")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(run, done))
        return run, True

    @property
    def in_hand(self) -> list[Run]:
        return list(self._runs.values())

    async def aclose(self, within_s: float) -> None:
        """Wait up to `within_s` for ends to be stored, and cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, run: Run, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._runs.get((run.name, run.fingerprint)) is run:
            del self._runs[run.name, run.fingerprint]
