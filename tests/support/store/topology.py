"""The kinds of stores that the store-facing tests run on.

FAIRLANE_TEST_STORE selects one for all fixtures of stores: `server` (the default) is one server on a Unix socket,
`cluster` three masters with a replica each, `sentinel` a master with two replicas and three Sentinels. Tests that need
one server, because they stop it, change its users or connect to its socket, are skipped on the others."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio
import redis.asyncio.client
from redis.asyncio.connection import BlockingConnectionPool

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.store import urls
from fairlane.store.cluster import Cluster, ClusterRedis
from tests.support.store.cluster import Masters
from tests.support.store.sentinel import Watch

KINDS = ("server", "cluster", "sentinel")
KIND = os.environ.get("FAIRLANE_TEST_STORE", KINDS[0])
if KIND not in KINDS:
    raise ValueError(f"FAIRLANE_TEST_STORE is {KIND!r}, not one of {', '.join(KINDS)}")
LIMIT = 50
TIMEOUT_S = 20.0
# Commands of replicas and Sentinels, and those that find out which node has a slot.
_BETWEEN_SERVERS = {"cluster", "ping", "psync", "publish", "replconf", "subscribe"}
# Commands that a test's client of a Cluster sends to every master.
_EVERYWHERE = {"ACL", "CLIENT", "CONFIG", "DBSIZE", "FLUSHALL", "FUNCTION", "INFO", "KEYS", "SCRIPT"}


class SharedStore:
    """A Cluster or a master behind Sentinels, in place of an EmbeddedStore."""

    def __init__(self, servers: Masters | Watch) -> None:
        self._servers = servers
        self.url = servers.url

    def flush(self) -> None:
        """Delete all keys."""
        self._servers.flush()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"needs one server: {name} of a store")


@contextmanager
def running(directory: Path, binary: str) -> Iterator[EmbeddedStore]:
    """Run a store of the chosen kind."""
    if KIND == "server":
        store = EmbeddedStore(directory, binary=binary)
        store.start()
        yield store
        store.stop()
        return
    servers: Masters | Watch = (
        Masters(directory, binary) if KIND == "cluster" else Watch(directory, binary, replicas=2, sentinels=3)
    )
    try:
        servers.start()
        yield cast(EmbeddedStore, SharedStore(servers))
    finally:
        servers.stop()


def commands(stats: dict[str, Any]) -> int:
    """Return how many commands a store has executed, those in scripts included, by its `INFO commandstats`."""
    names = {name: name.removeprefix("cmdstat_").partition("|")[0] for name in stats}
    return sum(each["calls"] for name, each in stats.items() if names[name] not in _BETWEEN_SERVERS)


def one_server(url: str) -> str:
    """Return the URL of one server; skip the test if it is another store's."""
    if not url.startswith(urls.SERVER_SCHEMES):
        pytest.skip(f"needs one server, not {KIND}")
    return url


def one_master(url: str) -> str:
    """Return the URL of a store with one master; skip the test if it is a Cluster's."""
    if url.startswith(urls.CLUSTER_SCHEMES):
        pytest.skip("needs one master")
    return url


def client(url: str, **options: Any) -> redis.asyncio.Redis:
    """Return a client of any store; with options of redis-py's, of one server only."""
    if url.startswith(urls.CLUSTER_SCHEMES) and not options:
        opened = partial(urls.client, limit=LIMIT, timeout_s=TIMEOUT_S)
        return AdministeredCluster(Cluster(url, opened, redis.asyncio.Redis.aclose, timeout_s=TIMEOUT_S))
    if url.startswith(urls.SENTINEL_SCHEMES) and not options:
        return urls.client(url, limit=LIMIT, timeout_s=TIMEOUT_S)
    pool = BlockingConnectionPool.from_url(one_server(url), max_connections=LIMIT, **options)
    return redis.asyncio.Redis.from_pool(pool)


class CommandList(redis.asyncio.client.Pipeline):
    """A pipeline that runs its commands one by one, each on its node."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction=False, shard_hint=None)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self.command_stack = self.command_stack, []
        return [await self._client.execute_command(*args, **options) for args, options in commands]  # type: ignore[no-untyped-call]


class AdministeredCluster(ClusterRedis[redis.asyncio.Redis]):
    """The product's client of a Cluster, which also runs commands that concern all masters."""

    def __init__(self, cluster: Cluster[redis.asyncio.Redis]) -> None:
        super().__init__(cluster, lambda node: node, timeout_s=TIMEOUT_S)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "CommandList":
        return CommandList(self)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        name = args[0].split()[0]
        if name == "SCAN":
            return 0, await self.execute_command("KEYS", args[args.index(b"MATCH") + 1] if b"MATCH" in args else "*")
        if name not in _EVERYWHERE or args[0] == "FUNCTION LOAD":
            return await super().execute_command(*args, **options)
        await self._cluster.find(0)
        replies = [await node.execute_command(*args, **options) for node in self._cluster.nodes]  # type: ignore[no-untyped-call]
        if name == "KEYS":
            return list(chain(*replies))
        return reduce(_added, replies)


def _added(one: Any, other: Any) -> Any:
    """Return two nodes' figures added up, and other replies from the first."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | other | {name: _added(one[name], other[name]) for name in one.keys() & other.keys()}
    return one + other if type(one) is type(other) is int else one
