"""What consoles watch: the overview about each second and the map of KV blocks as it changes, as server-sent events.

Each is computed once a second for all who watch this gateway, and not at all while nobody does. A reader that is behind
gets the newest of each event, never what it missed; one that takes nothing for WRITE_TIMEOUT_S is dropped.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairlane.gateway.errors import ApiError, internal_error, store_unavailable
from fairlane.gateway.http import disconnect, response, sse
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.sse import EventStream
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

EVERY_S = 1.0
CHECK_EVERY_S = 10.0
"""How often it is asked whether each reader may still watch, beside whenever somebody's rights have ended."""
MOST_WATCHERS = 64
"""Of one gateway."""
MOST_OF_AN_OPERATOR = 16
"""Of these, that one operator may have: a fourth, so that nobody keeps the others out."""
WRITE_TIMEOUT_S = 20.0
KEEP_ALIVE_S = 10.0
FIRST = b"retry: 2000\n\n"
"""A browser that loses the stream comes back after so many ms."""
OVERVIEW = "overview"
KV = "kv"
UNAVAILABLE = "unavailable"
"""Sent in its place while the fleet cannot be read, with the error."""

Look = Callable[[], Awaitable[object]]
Check = Callable[[], Awaitable[object]]
Revision = Callable[[], Awaitable[bytes]]


class Watcher:
    """One reader: the newest frame of each event that it has not taken yet."""

    def __init__(self, operator: str, check: Check, *, kv: bool = True) -> None:
        """`operator`: who reads. `check`: raises ApiError once the reader may not watch any more. `kv`: the map of
        blocks too."""
        self.operator = operator
        self.check = check
        self.kv = kv
        self._frames: dict[str, bytes] = {}
        self._ready = asyncio.Event()
        self._is_over = False

    def tell(self, event: str, frame: bytes) -> None:
        """Give it a frame, in place of an older one that it has not taken."""
        self._frames.pop(event, None)
        self._frames[event] = frame
        self._ready.set()

    def end(self) -> None:
        """It watches no more."""
        self._is_over = True
        self._ready.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """What it is to be sent, until it watches no more; a comment where there was nothing for long."""
        while not self._is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._ready.wait()
            self._ready.clear()
            taken, self._frames = self._frames, {}
            if not self._is_over:
                yield b"".join(taken.values()) or sse.comment("keep-alive")


class LiveHub:
    """All who watch this gateway. For one event loop."""

    def __init__(
        self,
        look: Look,
        look_at_blocks: Look,
        revision: Revision,
        *,
        most: int = MOST_WATCHERS,
        most_each: int = MOST_OF_AN_OPERATOR,
        every_s: float = EVERY_S,
    ) -> None:
        """`look`: the overview now; raises ApiError or what the store raises. `look_at_blocks`: the map of blocks now;
        raises as well. `revision`: another one whenever somebody's rights have ended; so does this."""
        self._look = look
        self._look_at_blocks = look_at_blocks
        self._revision = revision
        self._most = most
        self._most_each = most_each
        self._every_s = every_s
        self._watchers: set[Watcher] = set()
        self._running: asyncio.Task[None] | None = None
        self._last: tuple[float, str, bytes] | None = None
        """When which event was made, for who comes between two."""
        self._map: bytes | None = None
        """The map as it was told last."""
        self._is_closed = False
        self.looks = 0
        """How often the overview was computed."""

    @property
    def count(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def enter(self, operator: str, check: Check, *, kv: bool = True) -> Watcher:
        """Add a reader until it leaves. `operator`: who it is, as the audit log names operators.

        Raises ApiError `overloaded` where too many watch already, of this operator or of all.
        """
        if len(self._watchers) >= self._most:
            raise ApiError("Too many consoles watch this gateway.", "overloaded", retry_after_s=EVERY_S)
        if sum(watcher.operator == operator for watcher in self._watchers) >= self._most_each:
            message = f"{operator} watches this gateway {self._most_each} times already: close some of these consoles."
            raise ApiError(message, "overloaded", retry_after_s=EVERY_S)
        watcher = Watcher(operator, check, kv=kv)
        self._watchers.add(watcher)
        loop = asyncio.get_running_loop()
        if self._last is not None and loop.time() - self._last[0] < self._every_s:
            watcher.tell(*self._last[1:])
        if kv and self._map is not None:
            watcher.tell(KV, self._map)
        if self._is_closed:
            watcher.end()
        elif self._running is None or self._running.done():
            self._running = loop.create_task(self._run(), name="live")
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """It reads no more."""
        self._watchers.discard(watcher)

    async def aclose(self) -> None:
        """End all streams; those that come later end at once."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.end()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        """Compute and tell, for as long as anybody watches."""
        loop = asyncio.get_running_loop()
        next_s = checked_s = loop.time()
        revision: bytes | None = None
        while self._watchers:
            event, frame = await self._frame()
            self._last = loop.time(), event, frame
            for watcher in self._watchers:
                watcher.tell(event, frame)
            await self._tell_blocks()
            try:
                known, revision = revision, await self._revision()
                if known != revision or loop.time() - checked_s >= CHECK_EVERY_S:
                    checked_s = loop.time()
                    await self._check()
            except STORE_ERRORS:
                log.debug("the store does not say who may still watch: all stay")
            except Exception:
                log.exception("asking who may still watch failed")
            next_s = max(next_s + self._every_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
        self._map = None

    async def _frame(self) -> tuple[str, bytes]:
        self.looks += 1
        try:
            return OVERVIEW, sse.event(OVERVIEW, await self._look())
        except ApiError as error:
            told = error
        except STORE_ERRORS:
            told = store_unavailable()
        except Exception:  # a defect in one look must not silence the next
            log.exception("the overview failed")
            told = internal_error()
        return UNAVAILABLE, sse.event(UNAVAILABLE, {"code": told.code, "message": told.message})

    async def _tell_blocks(self) -> None:
        """The map, to those who want it, where it has changed; while the store is away, nothing."""
        if not any(watcher.kv for watcher in self._watchers):
            self._map = None
            return
        try:
            frame = sse.event(KV, await self._look_at_blocks())
        except STORE_ERRORS:
            return
        except Exception:
            log.exception("the map of blocks failed")
            return
        if frame != self._map:
            self._map = frame
            for watcher in self._watchers:
                if watcher.kv:
                    watcher.tell(KV, frame)

    async def _check(self) -> None:
        """Let go of those who may not watch any more. Raises what the store raises."""
        for watcher in list(self._watchers):
            try:
                await watcher.check()
            except ApiError:
                watcher.end()


class LiveResponse(Response):
    """The stream of one reader, which has entered the hub and leaves it with the stream."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, hub: LiveHub, watcher: Watcher) -> None:
        super().__init__()
        self._hub = hub
        self._watcher = watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call. The request's body is not read: it has none."""
        state = scope.get("state", {})
        left: Disconnect = state.get(disconnect.STATE) or Disconnect(_nothing)
        channel = state.get(response.STATE)
        push = _never if channel is None else channel.push
        if scope["method"] == "HEAD":
            self._watcher.end()
        try:
            with EventStream(left, send, push, write_timeout_s=WRITE_TIMEOUT_S) as out:
                await out.write(FIRST)
                async for frames in self._watcher.frames():
                    await out.write(frames)
            await out.close()
        except ClientDisconnect:
            pass
        finally:
            self._hub.leave(self._watcher)


def _nothing() -> None:
    """There is no connection to read on."""


def _never(_: bytes) -> bool:
    """Nothing can be sent without waiting."""
    return False
