"""Connections to a store that is a Redis Cluster: those of each node as of a server alone, with a breaker of its own.

A node that does not answer is away for what it holds; what others hold is served as ever.
"""

import weakref
from urllib.parse import urlsplit

import redis.asyncio

from fairlane.store.circuit_breaker import Breaker
from fairlane.store.client import BLOCK_S, PATIENCE, TRIAL_KEY, Server, server
from fairlane.store.cluster import Cluster, ClusterRedis


class ClusterConnections:
    """The Connections to a Cluster. Nothing is opened before it is asked."""

    def __init__(self, url: str, *, timeout_s: float, limit: int, name: str) -> None:
        """As for `store.connections.connections`."""
        self._timeout_s, self._limit, self._name = timeout_s, limit, name
        self._cluster: Cluster[Server] = Cluster(url, self._opened, self._closed, timeout_s=timeout_s)
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        self.breaker = NodeBreakers(self._cluster)
        self.short = ClusterRedis(self._cluster, lambda node: node.short, timeout_s=timeout_s)
        self.patient = ClusterRedis(self._cluster, lambda node: node.patient, timeout_s=timeout_s * PATIENCE)

    def reader(self) -> redis.asyncio.Redis:
        """See Connections."""
        reader = _Reader(self._cluster)
        self._readers.add(reader)
        return reader

    async def aclose(self) -> None:
        """See Connections."""
        await self._cluster.aclose()

    def _opened(self, url: str) -> Server:
        node = server(
            url,
            timeout_s=self._timeout_s,
            limit=self._limit,
            name=f"{self._name} at {urlsplit(url).netloc.rpartition('@')[2]}",
            trial_key=lambda: self._cluster.key_of(node, f"{TRIAL_KEY}:"),
        )
        return node

    async def _closed(self, node: Server) -> None:
        self.breaker.openings_of_others += node.breaker.openings
        for reader in list(self._readers):
            await reader.forget(node)
        await node.aclose()


class NodeBreakers:
    """Whether a Cluster answers: the breakers of its nodes together."""

    def __init__(self, cluster: Cluster[Server]) -> None:
        self._cluster = cluster
        self.openings_of_others = 0
        """Of nodes that the Cluster no longer has."""

    @property
    def is_away(self) -> bool:
        """No node answers, or none is known yet."""
        return all(breaker.is_away for breaker in self._breakers())

    @property
    def is_whole(self) -> bool:
        """Every node answers."""
        breakers = self._breakers()
        return bool(breakers) and not any(breaker.is_away for breaker in breakers)

    @property
    def openings(self) -> int:
        """How often a node was found to be away."""
        return self.openings_of_others + sum(breaker.openings for breaker in self._breakers())

    def _breakers(self) -> list[Breaker]:
        return [node.breaker for node in self._cluster.nodes]


class _Reader(ClusterRedis[Server]):
    """A reader of each node that it has to do with."""

    def __init__(self, cluster: Cluster[Server]) -> None:
        super().__init__(cluster, self._reader, timeout_s=2.5 * BLOCK_S)
        self._readers: dict[Server, redis.asyncio.Redis] = {}

    async def forget(self, node: Server) -> None:
        """The Cluster has it no more."""
        reader = self._readers.pop(node, None)
        if reader is not None:
            await reader.aclose()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close the readers alone."""
        for node in list(self._readers):
            await self.forget(node)

    def _reader(self, node: Server) -> redis.asyncio.Redis:
        if node not in self._readers:
            self._readers[node] = node.reader()
        return self._readers[node]
