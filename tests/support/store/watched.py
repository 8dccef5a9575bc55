"""A client that stops between two scripts: to look at the store there, to change it, or to be killed."""

from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio


class Killed(Exception):
    """The process that used the client ended here."""


class WatchedRedis(redis.asyncio.Redis):
    """Awaits `after` whenever a script has run."""

    def __init__(self, other: redis.asyncio.Redis, after: Callable[[], Awaitable[None]]) -> None:
        """`other`: a client of the same store."""
        pool = other.connection_pool
        super().__init__(connection_pool=redis.asyncio.ConnectionPool(pool.connection_class, **pool.connection_kwargs))
        self.auto_close_connection_pool = True
        self._after = after

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        if args[0] in ("EVALSHA", "EVAL", "FCALL"):
            await self._after()
        return reply


class Killer:
    """An `after` that kills its process after so many scripts."""

    def __init__(self, scripts: int) -> None:
        self._left = scripts

    async def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            raise Killed
