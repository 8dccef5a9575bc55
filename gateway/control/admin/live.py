"""The console's live stream of server-sent events: the overview once a second, and the KV block map as it changes.

Both are computed once for all watchers of this gateway, and only while there are watchers. A slow reader skips to the
newest frame of each event; one that accepts nothing for WRITE_TIMEOUT_S is disconnected."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairlane.gateway.errors import ApiError, internal_error, store_unavailable
from fairlane.gateway.http import sse
from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.http.sse import EventStream
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

EVERY_S = 1.0
# Each watcher's rights are checked at this interval, and whenever the revision of rights changes.
CHECK_EVERY_S = 10.0
MOST_WATCHERS = 64
# Watchers of one operator: a quarter of MOST_WATCHERS, so that no operator can lock out the others.
MOST_OF_AN_OPERATOR = 16
WRITE_TIMEOUT_S = 20.0
KEEP_ALIVE_S = 10.0
# A browser reconnects this many milliseconds after losing the stream.
FIRST = b"retry: 2000\n\n"
OVERVIEW = "overview"
KV = "kv"
# The event sent instead of the overview while the fleet cannot be read; its data is the error.
UNAVAILABLE = "unavailable"

Read = Callable[[], Awaitable[object]]


class Watcher:
    """One reader: the newest unsent frame of each event."""

    def __init__(self, operator: str, check: Read, *, kv: bool = True) -> None:
        """`check` raises ApiError once the operator may not watch any more. `kv`: also send the block map."""
        self.operator = operator
        self.check = check
        self.kv = kv
        self._frames: dict[str, bytes] = {}
        self._ready = asyncio.Event()
        self._is_over = False

    def send(self, event: str, frame: bytes) -> None:
        self._frames.pop(event, None)
        self._frames[event] = frame
        self._ready.set()

    def end(self) -> None:
        self._is_over = True
        self._ready.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames until the watcher ends, and a comment as keep-alive when there is nothing to send."""
        while not self._is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._ready.wait()
            self._ready.clear()
            taken, self._frames = self._frames, {}
            if not self._is_over:
                yield b"".join(taken.values()) or sse.comment("keep-alive")


class LiveHub:
    """The watchers of this gateway. For one event loop."""

    def __init__(
        self,
        look: Read,
        look_at_blocks: Read,
        revision: Read,
        *,
        most: int = MOST_WATCHERS,
        every_s: float = EVERY_S,
    ) -> None:
        """`look` returns the overview and `look_at_blocks` the block map; both may raise ApiError or a store error.
        `revision` changes whenever an operator has lost rights, and raises the store's errors."""
        self._look = look
        self._look_at_blocks = look_at_blocks
        self._revision = revision
        self._most = most
        self._every_s = every_s
        self._watchers: set[Watcher] = set()
        self._running: asyncio.Task[None] | None = None
        # Time, event and frame of the latest overview, for watchers that join between two.
        self._last: tuple[float, str, bytes] | None = None
        self._map: bytes | None = None
        self._is_closed = False
        self.looks = 0

    @property
    def count(self) -> int:
        return len(self._watchers)

    def enter(self, operator: str, check: Read, *, kv: bool = True) -> Watcher:
        """Add a watcher until `leave`. `operator`: the name in the audit log.

        Raise ApiError `overloaded` if this operator or all operators together have too many streams."""
        if len(self._watchers) >= self._most:
            raise ApiError("This gateway has its maximum number of live streams.", "overloaded", retry_after_s=EVERY_S)
        if sum(watcher.operator == operator for watcher in self._watchers) >= MOST_OF_AN_OPERATOR:
            message = f"{operator} already has {MOST_OF_AN_OPERATOR} live streams on this gateway: close some consoles."
            raise ApiError(message, "overloaded", retry_after_s=EVERY_S)
        watcher = Watcher(operator, check, kv=kv)
        self._watchers.add(watcher)
        loop = asyncio.get_running_loop()
        if self._last is not None and loop.time() - self._last[0] < self._every_s:
            watcher.send(*self._last[1:])
        if kv and self._map is not None:
            watcher.send(KV, self._map)
        if self._is_closed:
            watcher.end()
        elif self._running is None or self._running.done():
            self._running = loop.create_task(self._run(), name="live")
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    async def aclose(self) -> None:
        self._is_closed = True
        for watcher in self._watchers:
            watcher.end()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = checked_s = loop.time()
        revision: object = None
        while self._watchers:
            event, frame = await self._frame()
            self._last = loop.time(), event, frame
            for watcher in self._watchers:
                watcher.send(event, frame)
            await self._send_blocks()
            try:
                known, revision = revision, await self._revision()
                if known != revision or loop.time() - checked_s >= CHECK_EVERY_S:
                    checked_s = loop.time()
                    await self._check()
            except STORE_ERRORS:
                log.debug("the store does not respond to the check of watchers' rights: all streams continue")
            except Exception:
                log.exception("checking the watchers' rights failed")
            next_s = max(next_s + self._every_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
        self._map = None

    async def _frame(self) -> tuple[str, bytes]:
        self.looks += 1
        try:
            return OVERVIEW, sse.event(OVERVIEW, await self._look())
        except ApiError as error:
            refusal = error
        except STORE_ERRORS:
            refusal = store_unavailable()
        except Exception:  # a bug in one overview must not end the stream
            log.exception("computing the overview failed")
            refusal = internal_error()
        return UNAVAILABLE, sse.event(UNAVAILABLE, {"code": refusal.code, "message": refusal.message})

    async def _send_blocks(self) -> None:
        if not any(watcher.kv for watcher in self._watchers):
            self._map = None
            return
        try:
            frame = sse.event(KV, await self._look_at_blocks())
        except STORE_ERRORS:
            return
        except Exception:
            log.exception("computing the block map failed")
            return
        if frame != self._map:
            self._map = frame
            for watcher in self._watchers:
                if watcher.kv:
                    watcher.send(KV, frame)

    async def _check(self) -> None:
        """End the streams of operators who may not watch any more. Raise the store's errors."""
        for watcher in list(self._watchers):
            try:
                await watcher.check()
            except ApiError:
                watcher.end()


class LiveResponse(Response):
    """The stream of one watcher, which leaves the hub when the stream ends."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, hub: LiveHub, watcher: Watcher) -> None:
        super().__init__()
        self._hub = hub
        self._watcher = watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        if scope["method"] == "HEAD":
            self._watcher.end()
        try:
            with EventStream(exchange.disconnect, send, exchange.channel.push, write_timeout_s=WRITE_TIMEOUT_S) as out:
                await out.write(FIRST)
                async for frames in self._watcher.frames():
                    await out.write(frames)
            await out.close()
        except ClientDisconnect:
            pass
        finally:
            self._hub.leave(self._watcher)
