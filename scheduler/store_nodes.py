"""Which node of a Redis Cluster holds which slot: read from any node, and again where there is reason to doubt it."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from scheduler import store_pool

log = logging.getLogger(__name__)

READ_EVERY_S = 1.0
"""Pause between two readings of the map; while no node has ever named one, a quarter of it."""

Address = tuple[str, int]
Node = TypeVar("Node")
"""What a process keeps of a node: a client, or several."""


def slot_of(key: str | bytes) -> int:
    """The slot that a key belongs to, by its hash tag where it has one."""
    return key_slot(key.encode() if isinstance(key, str) else key)


class Cluster(Generic[Node]):
    """The nodes of one Cluster, and which of them holds each slot. Opens nothing before it is asked."""

    def __init__(
        self, url: str, opened: Callable[[str], Node], closed: Callable[[Node], Awaitable[None]], *, timeout_s: float
    ) -> None:
        """`opened`: a node by the URL of its server; `closed`: lets go of one. `timeout_s`: of a question to a node."""
        self._named = store_pool.clustered(url)
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
        """All that hold slots; none while no node has named them."""
        return list(self._nodes.values())

    def holder(self, slot: int) -> Node | None:
        """Who holds a slot, as far as is known."""
        address = self._holders[slot]
        return None if address is None else self._nodes[address]

    async def find(self, slot: int) -> Node:
        """Who holds a slot; at first the map has to be read. Raises redis.RedisError."""
        if not self._nodes:
            self.doubt()
            if self._reading is not None and not self._is_lost:
                await asyncio.shield(self._reading)
        found = self.holder(slot)
        if found is not None:
            return found
        if not self._nodes:
            raise redis.ConnectionError("no node of the Cluster answers")
        raise redis.exceptions.ClusterDownError("no node of the Cluster holds the slot")

    def moved(self, slot: int, host: str, port: int) -> Node:
        """A slot is said to be another's; `host` is empty where that is the host of who says so."""
        known = self._holders[slot]
        address = (host or (known[0] if known else ""), port)
        self._holders[slot] = address
        self.doubt()
        return self._node(address)

    def node_at(self, slot: int, host: str, port: int) -> Node:
        """Whom a node names for a slot that is about to move there; `host` as for `moved`."""
        known = self._holders[slot]
        return self._node((host or (known[0] if known else ""), port))

    def key_of(self, node: Node, prefix: str) -> str:
        """A name with this prefix that a node holds. Raises redis.ConnectionError where it holds nothing."""
        if not any(self.holder(slot) is node for slot in range(REDIS_CLUSTER_HASH_SLOTS)):
            raise redis.ConnectionError("the node holds no slots")
        names = (f"{prefix}{number}" for number in itertools.count())
        return next(name for name in names if self.holder(slot_of(name)) is node)

    def doubt(self) -> None:
        """The map may be out of date: read it, unless that is done or was done just now."""
        if self._reading is None and not self._is_closed and asyncio.get_running_loop().time() >= self._pause_until_s:
            self._reading = asyncio.create_task(self._read(), name="map of the Cluster")

    async def aclose(self) -> None:
        """Close all nodes."""
        self._is_closed = True
        reading = self._reading
        if reading is not None:
            await asyncio.wait({reading}, timeout=self._timeout_s)  # redis-py leaks what is cut off while it connects
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
        """Ask one node after another, first the one that answered last."""
        try:
            asked = dict.fromkeys([*([self._ask_first] if self._ask_first else []), *self._nodes, *self._named.nodes])
            for address in asked:
                try:
                    self._take_over(await self._slots(address))
                except (redis.RedisError, OSError) as error:
                    failure = f"{type(error).__name__}: {error}"
                else:
                    self._ask_first = address
                    self._found()
                    return
            self._lost(failure)
        finally:
            pause_s = READ_EVERY_S if self._nodes else READ_EVERY_S / 4
            self._pause_until_s = asyncio.get_running_loop().time() + pause_s
            self._reading = None

    async def _slots(self, address: Address) -> list[tuple[int, int, Address]]:
        """The first and last slot of each range, and its master. Raises redis.RedisError, OSError."""
        url = self._named.url(*address)
        pool = store_pool.pool(url, limit=1, timeout_s=self._timeout_s, retry=Retry(NoBackoff(), 0))
        async with redis.asyncio.Redis.from_pool(pool) as client, asyncio.timeout(self._timeout_s):
            ranges = await client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
        if not ranges:
            raise redis.ConnectionError("a node of the Cluster knows of no slots")
        return [
            (first, last, (host.decode() if host else address[0], port)) for first, last, (host, port, *_), *_ in ranges
        ]

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

    def _found(self) -> None:
        if self._is_lost:
            log.warning("the Cluster says again which node holds what")
        self._is_lost = False

    def _lost(self, failure: str) -> None:
        if not self._is_lost:
            log.warning("no node of the Cluster says which node holds what (%s)", failure)
        self._is_lost = True
