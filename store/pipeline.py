"""One connection to the store for the scripts of all requests: the calls of one loop tick are sent in a few writes.

Replies arrive in the order of the calls. A late reply fails only its own call: its place in the order is kept, and the
connection takes no further calls, because the network may be dropping packets."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis
import redis
from redis.asyncio.connection import AbstractConnection

from fairlane.store.timeouts import READ_FIRST_S, LatenessWatch, Timeout, has_passed

Argument = str | bytes | int | float
Connect = Callable[[], Awaitable[AbstractConnection]]
_NOTHING = object()
_LOST = "the connection to the store was lost"
# Calls queued before a write, so that the store works on them while the loop still produces the rest. A write costs
# about as much as a quarter of a call.
MOST_UNSENT = 4
_KINDS = {
    "NOSCRIPT": redis.exceptions.NoScriptError,
    "READONLY": redis.ReadOnlyError,
    "TRYAGAIN": redis.exceptions.TryAgainError,
}
_REDIRECTS = {"MOVED": redis.exceptions.MovedError, "ASK": redis.exceptions.AskError}
# Errors after which a new connection, perhaps to another server, may work. Every call may be sent twice.
_MOVED_ON = (redis.ConnectionError, redis.ReadOnlyError)


class Pipe:
    """Pipelined calls, each bounded by `limit_s`. Opens a connection when it needs one."""

    def __init__(self, connect: Connect, limit_s: float) -> None:
        """`connect` returns a new authenticated connection that speaks RESP2."""
        self._connect = connect
        self._limit_s = limit_s
        self._wire: _Wire | None = None
        # Includes connections that take no further calls but still expect replies.
        self._wires: set[_Wire] = set()
        self._opening: asyncio.Task[_Wire] | None = None
        self._is_closed = False

    async def call(self, *command: Argument) -> Any:  # noqa: ANN401 - whatever the command replies
        """Send one command and return its reply, within `limit_s`, or twice that if a connection has to be opened."""
        packed = hiredis.pack_command(command)  # type: ignore[arg-type] # of any length
        wire = self._wire
        if wire is not None and wire.takes_calls:
            try:
                return await wire.send(packed)
            except _MOVED_ON:  # it may have died unnoticed: retry once on a new one
                pass
        async with Timeout(self._limit_s):
            wire = await self._opened()
            if not wire.takes_calls:  # it was lost before this call could use it
                wire = await self._opened()
            return await wire.send(packed)

    async def aclose(self) -> None:
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for wire in list(self._wires):
            wire.close()

    async def _opened(self) -> "_Wire":
        if self._is_closed:
            raise redis.ConnectionError("the connection to the store is closed")
        if self._wire is not None and self._wire.takes_calls:  # another call has opened it meanwhile
            return self._wire
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._has_opened)
        return await asyncio.shield(self._opening)  # other callers may be waiting for it

    def _has_opened(self, opening: "asyncio.Task[_Wire]") -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # retrieved, so that asyncio does not log it

    async def _open(self) -> "_Wire":
        self._wire = wire = _Wire(await self._connect(), self._limit_s, self._wires.discard)
        self._wires.add(wire)
        return wire


class _Wire(asyncio.Protocol):
    def __init__(self, connection: AbstractConnection, limit_s: float, lost: Callable[["_Wire"], None]) -> None:
        self._limit_s = limit_s
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=redis.InvalidResponse, replyError=_error, notEnoughData=_NOTHING)
        self._unsent: list[tuple[bytes, asyncio.Future[Any]]] = []
        # Per call without a reply: its future, when it was written, and the loop's accumulated lateness at that time.
        self._pending: deque[tuple[asyncio.Future[Any], float, float]] = deque()
        self._watch = LatenessWatch(self._loop, limit_s, self._ticked)
        self._expiry: asyncio.TimerHandle | None = None
        self._streams = connection._reader, connection._writer  # keeps the transport open
        self._transport: asyncio.Transport = connection._writer.transport  # type: ignore[union-attr, assignment]
        self._transport.set_protocol(self)
        self.takes_calls = not self._transport.is_closing()
        connection._reader = connection._writer = None  # taken over

    def send(self, packed: bytes) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._transport.is_closing():
            future.set_exception(redis.ConnectionError(_LOST))
            return future
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append((packed, future))
        if len(self._unsent) == MOST_UNSENT:
            self._flush()
        return future

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOTHING:
                if not self._pending:
                    self._transport.abort()  # a reply without a call: the server is not a store
                    return
                future, _, _ = self._pending.popleft()
                if isinstance(reply, redis.RedisError):
                    self._fail(future, reply)
                elif not future.done():  # otherwise it was cancelled, or timed out
                    future.set_result(reply)
                if not (self.takes_calls or self._pending or self._unsent):
                    self._transport.abort()
        except redis.InvalidResponse:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.takes_calls = False
        self._watch.stop()
        if self._expiry is not None:
            self._expiry.cancel()
        for future in (*(future for future, _, _ in self._pending), *(future for _, future in self._unsent)):
            if not future.done():
                future.set_exception(redis.ConnectionError(_LOST))
        self._pending.clear()
        self._unsent.clear()
        self._lost(self)

    def close(self) -> None:
        self.takes_calls = False
        self._transport.abort()

    def _flush(self) -> None:
        """Write the calls made since the last flush. Their time limits start here, so that the loop's own work is not
        counted."""
        unsent, self._unsent = self._unsent, []
        if not unsent:  # lost in the meantime
            return
        now_s, late_s = self._loop.time(), self._watch.late_s
        written = b""  # of MOST_UNSENT calls at most
        for packed, future in unsent:
            written += packed
            self._pending.append((future, now_s, late_s))
        self._watch.start()
        if not self._transport.is_closing():
            self._transport.write(written)

    def _fail(self, future: asyncio.Future[Any], error: redis.RedisError) -> None:
        if isinstance(error, redis.ReadOnlyError):
            self.takes_calls = False  # no longer the master
        if not future.done():
            future.set_exception(error)

    def _ticked(self) -> bool:
        # Schedule `_expire` if a call is overdue, after replies that have already arrived were read.
        if self._is_overdue() and self._expiry is None:
            self._expiry = self._loop.call_later(READ_FIRST_S, self._expire)
        return bool(self._pending)

    def _is_overdue(self) -> bool:
        if not self._pending:
            return False
        _, asked_s, late_s = self._pending[0]
        return has_passed(self._limit_s, self._loop.time() - asked_s, self._watch.late_s - late_s)

    def _expire(self) -> None:
        self._expiry = None
        for future, asked_s, late_s in self._pending:
            if not has_passed(self._limit_s, self._loop.time() - asked_s, self._watch.late_s - late_s):
                return
            if not future.done():
                future.set_exception(TimeoutError("the store did not answer in time"))
            self.takes_calls = False
        if self._pending:  # no caller waits for any of them
            self._transport.abort()


def _error(message: str) -> redis.RedisError:
    kind, _, rest = message.partition(" ")
    if kind in ("LOADING", "MASTERDOWN", "CLUSTERDOWN"):
        return redis.BusyLoadingError(rest)
    if kind in _REDIRECTS:
        return _REDIRECTS[kind](rest)
    return _KINDS.get(kind, redis.ResponseError)(message)
