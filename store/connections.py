"""The clients of a store, whatever its URL names: each kind bounded by a time limit that fits its calls.

One server has its clients behind a circuit breaker; of a Cluster each node has, so that a node that does not answer is
away for the keys that it holds alone.
"""

import math
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fairlane.store import urls
from fairlane.store.circuit_breaker import Breaker, StoreAway, StoreStanding
from fairlane.store.cluster import Cluster, ClusterRedis
from fairlane.store.errors import StoreUnavailable
from fairlane.store.pipeline import Pipe
from fairlane.store.timeouts import MOST_DEFERRED, Timeout

PATIENCE = 4.0
"""The time limit of a call that no request waits for, in those of a call that one waits for."""
BLOCK_S = 1.0
"""How long a reader waits for new entries in one call."""
TRIAL_KEY = "fl:trial"
_TRIAL = "return redis.call('SET', KEYS[1], '', 'PX', 60000)"


class Connections(Protocol):
    """The clients of one store, each kind with the patience that its calls deserve."""

    @property
    def short(self) -> redis.asyncio.Redis:
        """For all that a request waits for."""

    @property
    def patient(self) -> redis.asyncio.Redis:
        """For operators and upkeep."""

    @property
    def breaker(self) -> StoreStanding:
        """Whether it answers. While it does not, calls of both fail at once."""

    def reader(self) -> redis.asyncio.Redis:
        """A client for one task that blocks up to BLOCK_S in the store, and its heartbeat; the caller closes it."""

    async def aclose(self) -> None:
        """Close every connection of the shared clients."""


def connections(url: str, *, timeout_s: float, limit: int, name: str = "store") -> Connections:
    """The connections to whatever the URL names; opens nothing yet. `timeout_s`: of a call that a request waits for;
    `limit`: connections of each client to each server; `name`: in logs."""
    if url.startswith(urls.CLUSTER_SCHEMES):
        return ClusterConnections(url, timeout_s=timeout_s, limit=limit, name=name)
    return server(url, timeout_s=timeout_s, limit=limit, name=name)


@dataclass(frozen=True, slots=True, eq=False)
class ServerConnections:
    """The `Connections` to a store of one server. While the breaker is open, calls of the two shared clients fail at
    once."""

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
        await self.breaker.aclose()
        for client in (self.short, self.patient, self.trials):
            await client.aclose()


def server(
    url: str, *, timeout_s: float, limit: int, name: str = "store", trial_key: Callable[[], str] = lambda: TRIAL_KEY
) -> ServerConnections:
    """The connections to one server; opens nothing yet. The arguments are those of `connections`; `trial_key`: the key
    that the breaker's trials write."""
    trials = _client(url, timeout_s, 1, BoundedRedis)
    breaker = Breaker(name, lambda: trials.eval(_TRIAL, 1, trial_key()))
    shared = _client(url, timeout_s, limit, BoundedRedis), _client(url, timeout_s * PATIENCE, limit, BoundedRedis)
    for client in shared:
        client.guard = breaker
        client.pipe = Pipe(partial(_connected, client), client.limit_s)
    return ServerConnections(url, *shared, breaker, trials)


class BoundedRedis(redis.asyncio.Redis):
    """A client whose every command ends within `limit_s`, with a TimeoutError. See `urls.pool`."""

    limit_s: float = math.inf
    guard: AbstractContextManager[object] = nullcontext()
    """A context around each call: a Breaker, where calls are to fail at once while the store is away."""
    pipe: Pipe | None = None
    """Where scripts and functions that the store knows are called, if this client has one."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's own signature
        """One command and its reply; a function's call goes through the pipe."""
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
        await self.reads.aclose()
        await super().aclose(close_connection_pool)


Client = TypeVar("Client", bound=BoundedRedis)


def _client(url: str, timeout_s: float, limit: int, kind: type[Client]) -> Client:
    # A pooled connection may have died unnoticed: one more try. Everything that is sent may be sent twice.
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


class ClusterConnections:
    """The `Connections` to a Cluster. Opens nothing before the first call."""

    def __init__(self, url: str, *, timeout_s: float, limit: int, name: str) -> None:
        self._timeout_s, self._limit, self._name = timeout_s, limit, name
        self._cluster: Cluster[ServerConnections] = Cluster(url, self._opened, self._closed, timeout_s=timeout_s)
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        self.breaker = NodeBreakers(self._cluster)
        self.short = ClusterRedis(self._cluster, lambda node: node.short, timeout_s=timeout_s)
        self.patient = ClusterRedis(self._cluster, lambda node: node.patient, timeout_s=timeout_s * PATIENCE)

    def reader(self) -> redis.asyncio.Redis:
        reader = _Reader(self._cluster)
        self._readers.add(reader)
        return reader

    async def aclose(self) -> None:
        await self._cluster.aclose()

    def _opened(self, url: str) -> ServerConnections:
        node = server(
            url,
            timeout_s=self._timeout_s,
            limit=self._limit,
            name=f"{self._name} at {urlsplit(url).netloc.rpartition('@')[2]}",
            trial_key=lambda: self._cluster.key_of(node, f"{TRIAL_KEY}:"),
        )
        return node

    async def _closed(self, node: ServerConnections) -> None:
        self.breaker.openings_of_others += node.breaker.openings
        for reader in list(self._readers):
            await reader.forget(node)
        await node.aclose()


class NodeBreakers:
    """The `StoreStanding` of a Cluster: the breakers of its nodes together."""

    def __init__(self, cluster: Cluster[ServerConnections]) -> None:
        self._cluster = cluster
        self.openings_of_others = 0
        """Openings of the breakers of nodes that the Cluster no longer has."""

    @property
    def is_away(self) -> bool:
        """No node answers, or none is known yet."""
        return all(breaker.is_away for breaker in self._breakers())

    @property
    def is_whole(self) -> bool:
        breakers = self._breakers()
        return bool(breakers) and not any(breaker.is_away for breaker in breakers)

    @property
    def openings(self) -> int:
        return self.openings_of_others + sum(breaker.openings for breaker in self._breakers())

    def _breakers(self) -> list[Breaker]:
        return [node.breaker for node in self._cluster.nodes]


class _Reader(ClusterRedis[ServerConnections]):
    """A reader of each node that it is asked to read from."""

    def __init__(self, cluster: Cluster[ServerConnections]) -> None:
        super().__init__(cluster, self._reader, timeout_s=2.5 * BLOCK_S)
        self._readers: dict[ServerConnections, redis.asyncio.Redis] = {}

    async def forget(self, node: ServerConnections) -> None:
        reader = self._readers.pop(node, None)
        if reader is not None:
            await reader.aclose()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        for node in list(self._readers):
            await self.forget(node)

    def _reader(self, node: ServerConnections) -> redis.asyncio.Redis:
        if node not in self._readers:
            self._readers[node] = node.reader()
        return self._readers[node]
