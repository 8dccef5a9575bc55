"""Connections to the store, each kind with the patience that its calls deserve."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.store_pipe import Pipe
from quotas.store import StoreUnavailable

log = logging.getLogger(__name__)

PATIENCE = 4.0
"""How much longer than a short question a call that changes something may take."""
BLOCK_S = 1.0
"""How long a reader waits for news in one call."""

STORE_TROUBLE = (redis.RedisError, OSError, TimeoutError, StoreUnavailable)
"""What any call raises while the store is away, loads its data or fails over."""


@dataclass(frozen=True, slots=True)
class Connections:
    """The store as this gateway reaches it."""

    url: str
    short: redis.asyncio.Redis
    """For questions on a request's way, and for those that are asked again anyway."""
    patient: redis.asyncio.Redis
    """For what changes something: a timeout there leaves open whether it happened."""

    def reader(self) -> "ReadingRedis":
        """A client for one task that blocks up to BLOCK_S in the store, and its heartbeat; the caller closes it."""
        client = _client(self.url, 2.5 * BLOCK_S, 2, ReadingRedis)
        client.reads = Pipe(partial(_connected, client.connection_pool), client.limit_s)
        return client

    async def aclose(self) -> None:
        """Close every connection of the two shared clients."""
        await self.short.aclose()
        await self.patient.aclose()


def connections(url: str, *, timeout_s: float, limit: int) -> Connections:
    """Open nothing yet. `timeout_s`: of a short question; `limit`: connections of each client."""
    shared = _client(url, timeout_s, limit, BoundedRedis), _client(url, timeout_s * PATIENCE, limit, BoundedRedis)
    for client in shared:
        client.pipe = Pipe(partial(_connected, client.connection_pool), client.limit_s)
    return Connections(url, *shared)


class BoundedRedis(redis.asyncio.Redis):
    """A client whose every command ends within `limit_s`, with a TimeoutError.

    Not by the client's own `socket_timeout`: with that set, redis-py sends under `asyncio.wait_for`, which on Python
    3.11 can lose the cancellation of a request whose client has gone.
    """

    limit_s: float = math.inf
    pipe: Pipe | None = None
    """The way of scripts that are known to the store, where this client has one."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's own signature
        """One command and its reply."""
        async with asyncio.timeout(self.limit_s):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        """One script that the store knows by its digest."""
        if self.pipe is None:
            return await super().evalsha(sha, numkeys, *keys_and_args)
        return await self.pipe.call("EVALSHA", sha, numkeys, *keys_and_args)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close every connection."""
        if self.pipe is not None:
            await self.pipe.aclose()
        await super().aclose(close_connection_pool)


class ReadingRedis(BoundedRedis):
    """A client that reads streams on a connection of its own, as often as there is news."""

    reads: Pipe

    async def xread(  # type: ignore[override] # of what redis-py's takes, what is used here
        self, streams: Mapping[str, str], count: int, block: int | None = None
    ) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
        """The entries of each stream after an id, once there are any or `block` milliseconds have passed."""
        waits = () if block is None else ("BLOCK", block)
        command = ("XREAD", "COUNT", count, *waits, "STREAMS", *streams, *streams.values())
        return [
            (stream, [(entry_id, dict(zip(fields[::2], fields[1::2], strict=True))) for entry_id, fields in entries])
            for stream, entries in await self.reads.call(*command) or ()
        ]

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close every connection."""
        await self.reads.aclose()
        await super().aclose(close_connection_pool)


Client = TypeVar("Client", bound=BoundedRedis)


def _client(url: str, timeout_s: float, limit: int, kind: type[Client]) -> Client:
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=limit,
        timeout=timeout_s,
        socket_timeout=None,
        socket_connect_timeout=timeout_s,
        # A pooled connection may have died unnoticed: one more try. All we send may be sent twice.
        retry=Retry(NoBackoff(), 1, (redis.ConnectionError,)),
    )
    client = kind(connection_pool=pool)
    client.limit_s = timeout_s
    client.auto_close_connection_pool = True  # the pool is its own
    return client


async def _connected(pool: redis.asyncio.ConnectionPool) -> AbstractConnection:
    """A connection as the pool would make it, for a pipe."""
    connection: AbstractConnection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})
    await connection.connect()  # type: ignore[no-untyped-call]
    return connection


async def every(period_s: float, what: str, work: Callable[[], Awaitable[None]], availability: "Availability") -> None:
    """Do some work again and again, until cancelled. Whatever happens to it once, the next time comes."""
    while True:
        try:
            await work()
            availability.answered()
        except STORE_TROUBLE as error:
            availability.failed(what, error)
        except Exception:  # a defect in one round must not end what every request relies on
            log.exception("%s failed", what)
        await asyncio.sleep(period_s)


class Availability:
    """Whether the store answers, as this process sees it: one log line per change, however many calls fail."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away_since: float | None = None

    @property
    def is_away(self) -> bool:
        """The last call that reported failed."""
        return self._away_since is not None

    def failed(self, what: str, error: BaseException) -> None:
        """A call failed."""
        if self._away_since is None:
            self._away_since = self._clock()
            log.warning("the store fails at %s (%s)", what, type(error).__name__)

    def answered(self) -> None:
        """A call succeeded."""
        if self._away_since is not None:
            log.warning("the store answers again after %.1f s", self._clock() - self._away_since)
            self._away_since = None
