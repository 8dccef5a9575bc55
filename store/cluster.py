"""A Redis Cluster as one client: each call goes to the node that holds its key, and follows the key when it moves.

While a slot is being migrated, a command follows ASK, and a script fails with TryAgainError. redis-py's own Cluster
client is not used; docs/internals/performance.md has the figures."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from fairlane.store import urls

log = logging.getLogger(__name__)

# Pause between two reads of the slot map; a quarter of it while no node has returned one yet.
READ_EVERY_S = 1.0

Address = tuple[str, int]
# The process's object for a node: one client, or several.
Node = TypeVar("Node")
# Commands that any node can answer.
_KEYLESS = frozenset({"TIME"})
# Commands that must run on every node. All others name a key first (FCALL: after the function's name). Scripts and
# XREAD have their own methods.
_NODE_LOCAL = frozenset({"FUNCTION LOAD", "FUNCTION LIST", "FUNCTION DELETE"})
Call = Callable[[redis.asyncio.Redis], Awaitable[Any]]


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key, by its hash tag if it has one."""
    return key_slot(key.encode() if isinstance(key, str) else key)


class Cluster(Generic[Node]):
    """The nodes of one Cluster, and the slot map. Opens no connection before the first call."""

    def __init__(
        self, url: str, opened: Callable[[str], Node], closed: Callable[[Node], Awaitable[None]], *, timeout_s: float
    ) -> None:
        """`opened` creates a node from its server's URL; `closed` closes one. `timeout_s` bounds one read of the slot
        map."""
        self._named = urls.parse_cluster_url(url)
        self._opened, self._closed = opened, closed
        self._timeout_s = timeout_s
        self._holders: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._nodes: dict[Address, Node] = {}
        self._ask_first: Address | None = None
        self._reading: asyncio.Task[None] | None = None
        self._pause_until_s = 0.0
        self._is_lost = False
        self._is_closed = False
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    def holder(self, slot: int) -> Node | None:
        address = self._holders[slot]
        return None if address is None else self._nodes[address]

    async def find(self, slot: int) -> Node:
        if not self._nodes:
            self.refresh()
            if self._reading is not None and not self._is_lost:
                await asyncio.shield(self._reading)
        found = self.holder(slot)
        if found is not None:
            return found
        if not self._nodes:
            raise redis.ConnectionError("no node of the Cluster answers")
        raise redis.exceptions.ClusterDownError("no node of the Cluster holds the slot")

    def moved(self, slot: int, host: str, port: int) -> Node:
        """Record that a slot moved, and return its new node. An empty `host` means the previous node's host."""
        known = self._holders[slot]
        address = (host or (known[0] if known else ""), port)
        self._holders[slot] = address
        self.refresh()
        return self._node(address)

    def node_at(self, slot: int, host: str, port: int) -> Node:
        known = self._holders[slot]
        return self._node((host or (known[0] if known else ""), port))

    def key_of(self, node: Node, prefix: str) -> str:
        if not any(self.holder(slot) is node for slot in range(REDIS_CLUSTER_HASH_SLOTS)):
            raise redis.ConnectionError("the node holds no slots")
        names = (f"{prefix}{number}" for number in itertools.count())
        return next(name for name in names if self.holder(slot_of(name)) is node)

    def refresh(self) -> None:
        """Start to read the slot map, unless a read is running or one ended less than READ_EVERY_S ago."""
        if self._reading is None and not self._is_closed and asyncio.get_running_loop().time() >= self._pause_until_s:
            self._reading = asyncio.create_task(self._read(), name="map of the Cluster")

    async def aclose(self) -> None:
        self._is_closed = True
        reading = self._reading
        if reading is not None:
            # redis-py leaks a connection that is cancelled while it connects.
            await asyncio.wait({reading}, timeout=self._timeout_s)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await asyncio.gather(*self._closing, *map(self._closed, self.nodes))
        self._nodes.clear()
        self._holders = [None] * REDIS_CLUSTER_HASH_SLOTS

    def _node(self, address: Address) -> Node:
        if address not in self._nodes:
            self._nodes[address] = self._opened(self._named.url(*address))
        return self._nodes[address]

    async def _read(self) -> None:
        try:
            asked = dict.fromkeys([*([self._ask_first] if self._ask_first else []), *self._nodes, *self._named.nodes])
            for address in asked:
                try:
                    self._take_over(await read_slots(self._named, address, timeout_s=self._timeout_s))
                except (redis.RedisError, OSError) as error:
                    failure = f"{type(error).__name__}: {error}"
                else:
                    self._ask_first = address
                    self._note_read(None)
                    return
            self._note_read(failure)
        finally:
            pause_s = READ_EVERY_S if self._nodes else READ_EVERY_S / 4
            self._pause_until_s = asyncio.get_running_loop().time() + pause_s
            self._reading = None

    def _take_over(self, ranges: list[tuple[int, int, Address]]) -> None:
        holders: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, address in ranges:
            self._node(address)
            holders[first : last + 1] = [address] * (last + 1 - first)
        self._holders = holders
        for address in self._nodes.keys() - {address for _, _, address in ranges}:
            closing = asyncio.ensure_future(self._closed(self._nodes.pop(address)))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _note_read(self, failure: str | None) -> None:
        if failure is None and self._is_lost:
            log.warning("the Cluster's slot map can be read again")
        elif failure is not None and not self._is_lost:
            log.warning("no node of the Cluster returns the slot map (%s)", failure)
        self._is_lost = failure is not None


class ClusterRedis(redis.asyncio.Redis, Generic[Node]):
    """A client that sends each call to one node. A command with several keys needs them all in one slot."""

    def __init__(
        self, cluster: Cluster[Node], client_of: Callable[[Node], redis.asyncio.Redis], *, timeout_s: float
    ) -> None:
        """`client_of` returns a node's client for calls of this kind. `timeout_s` bounds a call after an ASK reply."""
        super().__init__()  # its own pool stays empty
        self._cluster = cluster
        self._client_of = client_of
        self._timeout_s = timeout_s

    async def execute_command(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's own signature

        def call(client: redis.asyncio.Redis) -> Awaitable[Any]:
            return client.execute_command(*args, **options)  # type: ignore[no-untyped-call]

        if args[0] in _KEYLESS:
            return await self._anywhere(call)
        if args[0] in _NODE_LOCAL:
            return await self._everywhere(call)
        if args[0] == "FCALL":
            return await self._in_slot(args[3], call)
        slot = slot_of(args[1])
        try:
            return await self._on(slot, call)
        except redis.exceptions.AskError as asked:
            client = self._client_of(self._cluster.node_at(slot, asked.host, asked.port))
            async with asyncio.timeout(self._timeout_s):
                return await _asking(client, args, options)

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        return await self._in_slot(keys_and_args[0], lambda client: client.evalsha(sha, numkeys, *keys_and_args))

    async def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        return await self._in_slot(keys_and_args[0], lambda client: client.eval(script, numkeys, *keys_and_args))

    async def xread(  # type: ignore[override] # of what redis-py's takes, what is used here
        self, streams: Mapping[Any, Any], count: int | None = None, block: int | None = None
    ) -> Any:  # noqa: ANN401 - as above
        after = dict(streams)
        return await self._in_slot(next(iter(after)), lambda client: client.xread(after, count=count, block=block))

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self._cluster.aclose()
        await super().aclose(close_connection_pool)

    async def _in_slot(self, key: str | bytes, call: Call) -> Any:  # noqa: ANN401
        """Run a call that may touch more keys than the one it names. Raises TryAgainError while its slot is being
        migrated, because either node would then see only some of the keys."""
        try:
            return await self._on(slot_of(key), call)
        except redis.exceptions.AskError as error:
            raise redis.exceptions.TryAgainError("the slot is being moved to another node") from error

    async def _on(self, slot: int, call: Call) -> Any:  # noqa: ANN401
        node = self._cluster.holder(slot) or await self._cluster.find(slot)
        try:
            return await self._at(node, call)
        except redis.exceptions.MovedError as moved:
            node = self._cluster.moved(slot, moved.host, moved.port)
        try:
            return await self._at(node, call)
        except redis.exceptions.MovedError as again:  # nodes may disagree for a moment
            raise redis.exceptions.TryAgainError("the nodes do not agree who holds the slot") from again

    async def _anywhere(self, call: Call) -> Any:  # noqa: ANN401
        failure: Exception = redis.ConnectionError("no node of the Cluster answers")
        for node in self._cluster.nodes or [await self._cluster.find(0)]:
            try:
                return await self._at(node, call)
            except Exception as error:  # noqa: BLE001 - the last is raised
                failure = error
        raise failure

    async def _everywhere(self, call: Call) -> Any:  # noqa: ANN401
        # Call every node; return one answer. A node that fails is called again by the request that needs it.
        asked = [self._at(node, call) for node in self._cluster.nodes or [await self._cluster.find(0)]]
        found = await asyncio.gather(*asked, return_exceptions=True)
        answers = [answer for answer in found if not isinstance(answer, BaseException)]
        if not answers:
            raise next(error for error in found if isinstance(error, BaseException))
        return answers[0]

    async def _at(self, node: Node, call: Call) -> Any:  # noqa: ANN401
        try:
            return await call(self._client_of(node))
        except redis.exceptions.ClusterDownError:
            self._cluster.refresh()
            raise
        except redis.ResponseError:
            raise  # the node answers
        except BaseException:  # also a cancellation or timeout
            self._cluster.refresh()
            raise


def client(url: str, *, limit: int, timeout_s: float) -> redis.asyncio.Redis:
    """Return a client for any store URL, without retries, with at most `limit` connections to each server."""
    opened = partial(urls.client, limit=limit, timeout_s=timeout_s)
    if not url.startswith(urls.CLUSTER_SCHEMES):
        return opened(url)
    cluster = Cluster(url, opened, redis.asyncio.Redis.aclose, timeout_s=timeout_s)
    return ClusterRedis(cluster, lambda node: node, timeout_s=timeout_s)


async def read_slots(named: urls.ClusterUrl, address: Address, *, timeout_s: float) -> list[tuple[int, int, Address]]:
    """Read the slot map from one node: first slot, last slot, and the address of their master."""
    async with urls.client(named.url(*address), limit=1, timeout_s=timeout_s) as node, asyncio.timeout(timeout_s):
        ranges = await node.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
    if not ranges:
        raise redis.ConnectionError("the node's slot map is empty")
    return [
        (first, last, (host.decode() if host else address[0], port)) for first, last, (host, port, *_), *_ in ranges
    ]


async def _asking(client: redis.asyncio.Redis, args: tuple[Any, ...], options: dict[str, Any]) -> Any:  # noqa: ANN401
    async with client.pipeline(transaction=False) as both:
        both.execute_command("ASKING")
        both.execute_command(*args, **options)
        return (await both.execute())[1]
