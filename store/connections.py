"""The clients of a store, for any URL: each kind of client has a time limit that fits its calls.

A single server has one circuit breaker. Each node of a Cluster has its own, so that a node that does not answer affects
only the keys that it holds."""

import math
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection

from fairlane.store import urls
from fairlane.store.circuit_breaker import Breaker, StoreAway
from fairlane.store.cluster import Cluster, ClusterRedis
from fairlane.store.errors import StoreUnavailable
from fairlane.store.pipeline import Pipe
from fairlane.store.timeouts import MOST_DEFERRED, Timeout

# Time limit of calls that no request waits for, as a multiple of the limit of calls that a request waits for.
PATIENCE = 4.0
# Maximum time that a reader's call waits for new entries.
BLOCK_S = 1.0
TRIAL_KEY = "fl:trial"
_TRIAL = "return redis.call('SET', KEYS[1], '', 'PX', 60000)"


def connections(url: str, *, timeout_s: float, limit: int, name: str = "store") -> "Connections":
    """Return the connections for any store URL; opens nothing yet. `timeout_s` bounds a call that a request waits for,
    `limit` the connections of each client to each server; `name` appears in log lines."""
    if url.startswith(urls.CLUSTER_SCHEMES):
        return ClusterConnections(url, timeout_s=timeout_s, limit=limit, name=name)
    return server(url, timeout_s=timeout_s, limit=limit, name=name)


@dataclass(frozen=True, slots=True, eq=False)
class ServerConnections:
    """The `Connections` to a single server."""

    url: str
    # For everything that a request waits for.
    short: "BoundedRedis"
    # For operators and upkeep.
    patient: "BoundedRedis"
    # While the store is away, calls of both clients fail at once.
    breaker: Breaker
    trials: "BoundedRedis"

    def reader(self) -> "ReadingRedis":
        """Open a client for one task that blocks up to BLOCK_S per call and for its heartbeat; the caller closes it."""
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
    """Return the connections to one server; opens nothing yet. The arguments are those of `connections`; `trial_key`
    returns the key that the breaker's trial calls write."""
    trials = _client(url, timeout_s, 1, BoundedRedis)
    breaker = Breaker(name, lambda: trials.eval(_TRIAL, 1, trial_key()))
    shared = _client(url, timeout_s, limit, BoundedRedis), _client(url, timeout_s * PATIENCE, limit, BoundedRedis)
    for client in shared:
        client.guard = breaker
        client.pipe = Pipe(partial(_connected, client), client.limit_s)
    return ServerConnections(url, *shared, breaker, trials)


class BoundedRedis(redis.asyncio.Redis):
    """A client whose every command ends within `limit_s`, by a TimeoutError if necessary. See `urls.pool`."""

    limit_s: float = math.inf
    # A context manager around each call: a Breaker, if calls must fail at once while the store is unavailable.
    guard: AbstractContextManager[object] = nullcontext()
    # Carries the calls of scripts and functions, if this client has one.
    pipe: Pipe | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's own signature
        if self.pipe is not None and args[0] == "FCALL":
            with self.guard:
                return await self.pipe.call(*args)
        with self.guard:
            async with Timeout(self.limit_s):
                try:
                    return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
                except redis.ReadOnlyError:  # refused without effect: this server is no longer the master
                    await self.connection_pool.disconnect(inuse_connections=False)
                    return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        if self.pipe is None:
            return await super().evalsha(sha, numkeys, *keys_and_args)
        with self.guard:
            return await self.pipe.call("EVALSHA", sha, numkeys, *keys_and_args)

    async def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        """Run a script whose digest the store did not know. It may have run before the store died and forgot it, so
        this never raises StoreAway, which promises no effect."""
        try:
            return await super().eval(script, numkeys, *keys_and_args)
        except StoreAway as error:
            raise StoreUnavailable(str(error)) from error

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        if self.pipe is not None:
            await self.pipe.aclose()
        await super().aclose(close_connection_pool)


class ReadingRedis(BoundedRedis):
    """A client that reads streams on a dedicated connection."""

    reads: Pipe

    async def xread(  # type: ignore[override] # of what redis-py's takes, what is used here
        self, streams: Mapping[str, str], count: int, block: int | None = None
    ) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
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
    # A pooled connection may have died unnoticed: retry once. Every call may therefore be sent twice.
    pool = urls.pool(url, limit=limit, timeout_s=timeout_s, retries=1)
    # The client bounds each call, and only it knows how late this loop is. redis-py's own limit must come later.
    pool.timeout = pool.connection_kwargs["socket_connect_timeout"] = timeout_s * (1.0 + MOST_DEFERRED)
    client = kind(connection_pool=pool)
    client.limit_s = timeout_s
    client.auto_close_connection_pool = True  # this client owns the pool
    return client


async def _connected(client: BoundedRedis) -> AbstractConnection:
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
        self.breaker.past_openings += node.breaker.openings
        for reader in list(self._readers):
            await reader.forget(node)
        await node.aclose()


class NodeBreakers:
    """A Cluster's availability: its nodes' breakers combined."""

    def __init__(self, cluster: Cluster[ServerConnections]) -> None:
        self._cluster = cluster
        # Openings of the breakers of nodes that have left the Cluster.
        self.past_openings = 0

    @property
    def is_away(self) -> bool:
        return all(breaker.is_away for breaker in self._breakers())

    @property
    def is_whole(self) -> bool:
        breakers = self._breakers()
        return bool(breakers) and not any(breaker.is_away for breaker in breakers)

    @property
    def openings(self) -> int:
        return self.past_openings + sum(breaker.openings for breaker in self._breakers())

    def _breakers(self) -> list[Breaker]:
        return [node.breaker for node in self._cluster.nodes]


Connections = ServerConnections | ClusterConnections


class _Reader(ClusterRedis[ServerConnections]):
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
