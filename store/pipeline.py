"""One connection to the store for all scripts that requests run: what one loop tick asks goes out in few writes.

A pool lends each call a connection for a whole round trip, and pays for the lending, a write and a read each time.
Here calls follow each other on one connection, and their replies come back in the same order:

    ask ──> queue ──flush, each MOST_UNSENT and at a tick's end──> store ──> replies, oldest first ──> ask's future

A tick may ask for many requests. The store is to begin with the first of them while the loop is still busy with the
rest: if all went out at the end, each of the two would wait while the other works.

A reply that does not come in time fails its call alone; its place is kept, and the connection takes no further calls:
a network that swallows what it is given would swallow them too. Time in which this loop was held up does not count.
"""

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
MOST_UNSENT = 4
"""Calls that wait to be written: a write costs about as much as the fourth part of a call."""
_KINDS = {
    "NOSCRIPT": redis.exceptions.NoScriptError,
    "READONLY": redis.ReadOnlyError,
    "TRYAGAIN": redis.exceptions.TryAgainError,
}
_REDIRECTS = {"MOVED": redis.exceptions.MovedError, "ASK": redis.exceptions.AskError}
_MOVED_ON = (redis.ConnectionError, redis.ReadOnlyError)
"""Another connection may do, to another server even. All that is sent may be sent twice."""


class Pipe:
    """Calls in the order in which they are made, each bounded by `limit_s`. Opens a connection when it needs one."""

    def __init__(self, connect: Connect, limit_s: float) -> None:
        """`connect`: a new connection that has said who it is and speaks RESP2."""
        self._connect = connect
        self._limit_s = limit_s
        self._wire: _Wire | None = None
        self._wires: set[_Wire] = set()
        """Also those that take no further calls, while replies are still expected."""
        self._opening: asyncio.Task[_Wire] | None = None
        self._is_closed = False

    async def call(self, *command: Argument) -> Any:  # noqa: ANN401 - whatever the command replies
        """One command and its reply, `limit_s` after it was written at the latest; twice that where a connection had to
        be opened. Raises redis.RedisError, OSError, TimeoutError."""
        packed = hiredis.pack_command(command)  # type: ignore[arg-type] # of any length
        wire = self._wire
        if wire is not None and wire.takes_calls:
            try:
                return await wire.ask(packed)
            except _MOVED_ON:  # it may have died unnoticed: once more, on a new one
                pass
        async with Timeout(self._limit_s):
            wire = await self._opened()
            if not wire.takes_calls:  # it was lost before whoever waited for it could ask
                wire = await self._opened()
            return await wire.ask(packed)

    async def aclose(self) -> None:
        """Close; what is still asked fails."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for wire in list(self._wires):
            wire.close()

    async def _opened(self) -> "_Wire":
        """A wire that takes calls, opened once for all that wait for it."""
        if self._is_closed:
            raise redis.ConnectionError("the connection to the store is closed")
        if self._wire is not None and self._wire.takes_calls:  # others have opened it meanwhile
            return self._wire
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._has_opened)
        return await asyncio.shield(self._opening)  # who else waits must not lose it

    def _has_opened(self, opening: "asyncio.Task[_Wire]") -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # where nobody waits any more, nobody needs to hear of it

    async def _open(self) -> "_Wire":
        self._wire = wire = _Wire(await self._connect(), self._limit_s, self._wires.discard)
        self._wires.add(wire)
        return wire


class _Wire(asyncio.Protocol):
    """One connection, taken over once it is open."""

    def __init__(self, connection: AbstractConnection, limit_s: float, lost: Callable[["_Wire"], None]) -> None:
        self._limit_s = limit_s
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=redis.InvalidResponse, replyError=_error, notEnoughData=_NOTHING)
        self._unsent: list[tuple[bytes, asyncio.Future[Any]]] = []
        self._asked: deque[tuple[asyncio.Future[Any], float, float]] = deque()
        """What was written and has no reply yet, when that was, and how late the loop had been until then."""
        self._watch = LatenessWatch(self._loop, limit_s, self._ticked)
        self._expiry: asyncio.TimerHandle | None = None
        self._streams = connection._reader, connection._writer  # its transport would close with them
        self._transport: asyncio.Transport = connection._writer.transport  # type: ignore[union-attr, assignment]
        self._transport.set_protocol(self)
        self.takes_calls = not self._transport.is_closing()
        connection._reader = connection._writer = None  # it is ours now

    def ask(self, packed: bytes) -> "asyncio.Future[Any]":
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
                self._answer(reply)
        except redis.InvalidResponse:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.takes_calls = False
        self._watch.stop()
        if self._expiry is not None:
            self._expiry.cancel()
        for future in (*(future for future, _, _ in self._asked), *(future for _, future in self._unsent)):
            if not future.done():
                future.set_exception(redis.ConnectionError(_LOST))
        self._asked.clear()
        self._unsent.clear()
        self._lost(self)

    def close(self) -> None:
        self.takes_calls = False
        self._transport.abort()

    def _flush(self) -> None:
        """Write what was asked since the last tick. Its time counts from here: what the loop was busy with before is
        none of the store's."""
        unsent, self._unsent = self._unsent, []
        if not unsent:  # lost meanwhile
            return
        now_s, late_s = self._loop.time(), self._watch.late_s
        self._asked.extend([(future, now_s, late_s) for _, future in unsent])
        self._watch.start()
        if not self._transport.is_closing():
            self._transport.write(b"".join([packed for packed, _ in unsent]))

    def _answer(self, reply: object) -> None:
        if not self._asked:
            self._transport.abort()  # nobody asked: this is no store
            return
        future = self._asked.popleft()[0]
        if isinstance(reply, redis.ReadOnlyError):
            self.takes_calls = False  # it was the master once
        if not future.done():  # otherwise it was cancelled, or comes too late
            if isinstance(reply, redis.RedisError):
                future.set_exception(reply)
            else:
                future.set_result(reply)
        if not (self.takes_calls or self._asked or self._unsent):
            self._transport.abort()

    def _ticked(self) -> bool:
        """Something may be overdue; but a loop that is late itself has to read first what has long arrived."""
        if self._is_overdue() and self._expiry is None:
            self._expiry = self._loop.call_later(READ_FIRST_S, self._expire)
        return bool(self._asked)

    def _is_overdue(self) -> bool:
        """The oldest call is that waits for its reply."""
        if not self._asked:
            return False
        _, asked_s, late_s = self._asked[0]
        return has_passed(self._limit_s, self._loop.time() - asked_s, self._watch.late_s - late_s)

    def _expire(self) -> None:
        """Fail what is overdue."""
        self._expiry = None
        for future, asked_s, late_s in self._asked:
            if not has_passed(self._limit_s, self._loop.time() - asked_s, self._watch.late_s - late_s):
                return
            if not future.done():
                future.set_exception(TimeoutError("the store did not answer in time"))
            self.takes_calls = False
        if self._asked:  # and nobody waits for any of them
            self._transport.abort()


def _error(message: str) -> redis.RedisError:
    kind, _, rest = message.partition(" ")
    if kind in ("LOADING", "MASTERDOWN", "CLUSTERDOWN"):
        return redis.BusyLoadingError(rest)
    if kind in _REDIRECTS:
        return _REDIRECTS[kind](rest)
    return _KINDS.get(kind, redis.ResponseError)(message)
