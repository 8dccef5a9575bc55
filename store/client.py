"""Connections to one server of the store, each kind with the patience that its calls deserve."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fairlane.store import urls
from fairlane.store.circuit_breaker import Breaker, StoreAway
from fairlane.store.pipeline import Pipe
from fairlane.store.punctual import MOST_DEFERRED, Timeout
from fairlane.store.trouble import StoreUnavailable

PATIENCE = 4.0
"""How much longer than a request's question a call that no request waits for may take."""
BLOCK_S = 1.0
"""How long a reader waits for news in one call."""
TRIAL_KEY = "fl:trial"
_TRIAL = "return redis.call('SET', KEYS[1], '', 'PX', 60000)"


@dataclass(frozen=True, slots=True, eq=False)
class Server:
    """One server as this gateway reaches it: the Connections to a store that is one. While the breaker is open, calls
    of the two shared clients fail at once."""

    url: str
    short: "BoundedRedis"
    """For all that a request waits for."""
    patient: "BoundedRedis"
    """For operators and upkeep."""
    breaker: Breaker
    trials: "BoundedRedis"
    """The breaker's own client."""

    def reader(self) -> "ReadingRedis":
        """A client for one task that blocks up to BLOCK_S in the store, and its heartbeat; the caller closes it."""
        client = _client(self.url, 2.5 * BLOCK_S, 2, ReadingRedis)
        client.reads = Pipe(partial(_connected, client), client.limit_s)
        return client

    async def aclose(self) -> None:
        """Close every connection of the shared clients."""
        await self.breaker.aclose()
        for client in (self.short, self.patient, self.trials):
            await client.aclose()


def server(
    url: str, *, timeout_s: float, limit: int, name: str = "store", trial_key: Callable[[], str] = lambda: TRIAL_KEY
) -> Server:
    """Open nothing yet. `timeout_s`: of a request's question; `limit`: connections of each client; `name`: in logs;
    `trial_key`: what the breaker's trials write."""
    trials = _client(url, timeout_s, 1, BoundedRedis)
    breaker = Breaker(name, lambda: trials.eval(_TRIAL, 1, trial_key()))
    shared = _client(url, timeout_s, limit, BoundedRedis), _client(url, timeout_s * PATIENCE, limit, BoundedRedis)
    for client in shared:
        client.guard = breaker
        client.pipe = Pipe(partial(_connected, client), client.limit_s)
    return Server(url, *shared, breaker, trials)


class BoundedRedis(redis.asyncio.Redis):
    """A client whose every command ends within `limit_s`, with a TimeoutError.

    Not by the client's own `socket_timeout`: with that set, redis-py sends under `asyncio.wait_for`, which on Python
    3.11 can lose the cancellation of a request whose client has gone.
    """

    limit_s: float = math.inf
    guard: AbstractContextManager[object] = nullcontext()
    """Around each call: a Breaker, where it is to stop calls while the store is away."""
    pipe: Pipe | None = None
    """The way of scripts that are known to the store, where this client has one."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's own signature
        """One command and its reply; a function's call goes the way of scripts."""
        if self.pipe is not None and args[0] == "FCALL":
            with self.guard:
                return await self.pipe.call(*args)
        with self.guard:
            async with Timeout(self.limit_s):
                try:
                    return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
                except redis.ReadOnlyError:  # refused, so nothing was done: this was the master once
                    await self.connection_pool.disconnect(inuse_connections=False)
                    return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        """One script that the store knows by its digest."""
        if self.pipe is None:
            return await super().evalsha(sha, numkeys, *keys_and_args)
        with self.guard:
            return await self.pipe.call("EVALSHA", sha, numkeys, *keys_and_args)

    async def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        """One script in full, where the store did not know its digest.

        It may have run all the same, before the store died and forgot it: never StoreAway, which says that nothing was.
        """
        try:
            return await super().eval(script, numkeys, *keys_and_args)
        except StoreAway as error:
            raise StoreUnavailable(str(error)) from error

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
    # A pooled connection may have died unnoticed: one more try. All we send may be sent twice.
    retry = Retry(NoBackoff(), 1, (redis.ConnectionError,))
    pool = urls.pool(url, limit=limit, timeout_s=timeout_s, retry=retry)
    # The client bounds each call, and it alone knows how late this loop is: what redis-py bounds itself comes after.
    pool.timeout = pool.connection_kwargs["socket_connect_timeout"] = timeout_s * (1.0 + MOST_DEFERRED)
    client = kind(connection_pool=pool)
    client.limit_s = timeout_s
    client.auto_close_connection_pool = True  # the pool is its own
    return client


async def _connected(client: BoundedRedis) -> AbstractConnection:
    """A connection as the client's pool would make it, for a pipe. Raises TimeoutError."""
    pool = client.connection_pool
    connection: AbstractConnection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})
    try:
        async with Timeout(client.limit_s):
            await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection
