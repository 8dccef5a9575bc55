"""A client that stops between two scripts: to look at the store there, to change it, or to be killed."""

from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio


class Killed(Exception):
    """The process that used the client ended here."""


class ForwardingRedis(redis.asyncio.Redis):
    """Sends each command through another client, which may be a Cluster's; opens no connection itself."""

    def __init__(self, other: redis.asyncio.Redis) -> None:
        super().__init__()
        self._other = other

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] in ("EVALSHA", "EVAL"):  # a Cluster's client has methods of its own for these
            return await getattr(self._other, args[0].lower())(*args[1:])
        return await self._other.execute_command(*args, **options)  # type: ignore[no-untyped-call]


class WatchedRedis(ForwardingRedis):
    """Awaits `after` whenever a script has run."""

    def __init__(self, other: redis.asyncio.Redis, after: Callable[[], Awaitable[None]]) -> None:
        super().__init__(other)
        self._after = after

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = await super().execute_command(*args, **options)
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
