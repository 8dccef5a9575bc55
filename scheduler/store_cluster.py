"""A Redis Cluster as one client: each call goes to the node that holds its key, and follows the key when it moves.

    call ──slot of its key──> node ──┬─ a reply
                                     ├─ MOVED: the slot is another's: there, once
                                     ├─ ASK: the slot is being moved: a command goes there, a script comes back later
                                     └─ no answer: perhaps a replica stands in for it now

After MOVED and after failures the map of slots (scheduler.store_nodes) is read anew, beside the calls.

redis-py's own client of Clusters is not used: it refuses a call where no connection is free instead of waiting for one,
keeps calls for some time in pauses between tries, and knows no breaker for each node. Here each node is a client as for
one server, and only the way to it is chosen.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from scheduler import store_pool
from scheduler.store_nodes import Cluster, Node, slot_of

_KEYLESS = frozenset({"TIME"})
"""Commands that any node can answer."""
_OF_EACH = frozenset({"FUNCTION LOAD"})
"""Commands about what each node has of its own. All others name a key first, a function's call after its name; scripts
and reads of streams have methods here."""

Call = Callable[[redis.asyncio.Redis], Awaitable[Any]]


class ClusterRedis(redis.asyncio.Redis, Generic[Node]):
    """A client whose calls each go to one node. Of commands with several keys, those whose keys share a slot."""

    def __init__(
        self, cluster: Cluster[Node], client_of: Callable[[Node], redis.asyncio.Redis], *, timeout_s: float
    ) -> None:
        """`client_of`: a node's client, for calls of this kind. `timeout_s`: of one that a node passes on."""
        super().__init__()  # its own pool stays empty
        self._cluster = cluster
        self._client_of = client_of
        self._timeout_s = timeout_s

    async def execute_command(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's own signature
        """One command and its reply."""

        def call(client: redis.asyncio.Redis) -> Awaitable[Any]:
            return client.execute_command(*args, **options)  # type: ignore[no-untyped-call]

        if args[0] in _KEYLESS:
            return await self._anywhere(call)
        if args[0] in _OF_EACH:
            return await self._everywhere(call)
        if args[0] == "FCALL":
            return await self._whole(args[3], call)
        slot = slot_of(args[1])
        try:
            return await self._on(slot, call)
        except redis.exceptions.AskError as asked:
            client = self._client_of(self._cluster.node_at(slot, asked.host, asked.port))
            async with asyncio.timeout(self._timeout_s):
                return await _asking(client, args, options)

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        """One script that its node knows by its digest."""
        return await self._whole(keys_and_args[0], lambda client: client.evalsha(sha, numkeys, *keys_and_args))

    async def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:  # noqa: ANN401 - as above
        """One script in full."""
        return await self._whole(keys_and_args[0], lambda client: client.eval(script, numkeys, *keys_and_args))

    async def xread(  # type: ignore[override] # of what redis-py's takes, what is used here
        self, streams: Mapping[Any, Any], count: int | None = None, block: int | None = None
    ) -> Any:  # noqa: ANN401 - as above
        """What is new in streams of one slot."""
        after = dict(streams)
        return await self._whole(next(iter(after)), lambda client: client.xread(after, count=count, block=block))

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all nodes, for whoever else shares them too."""
        await self._cluster.aclose()
        await super().aclose(close_connection_pool)

    async def _whole(self, key: str | bytes, call: Call) -> Any:  # noqa: ANN401
        """What touches more keys than the one it names would see a part of them where its slot is being moved key by
        key: it is not run at all, on neither node. Raises redis.exceptions.TryAgainError then."""
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
        except redis.exceptions.MovedError as again:  # nodes disagree, as they may for some moments
            raise redis.exceptions.TryAgainError("the nodes do not agree who holds the slot") from again

    async def _anywhere(self, call: Call) -> Any:  # noqa: ANN401
        """Ask one node after another until one answers."""
        failure: Exception = redis.ConnectionError("no node of the Cluster answers")
        for node in self._cluster.nodes or [await self._cluster.find(0)]:
            try:
                return await self._at(node, call)
            except Exception as error:  # noqa: BLE001 - the last is raised
                failure = error
        raise failure

    async def _everywhere(self, call: Call) -> Any:  # noqa: ANN401
        """Ask every node; one that does not answer is asked again by whoever needs it."""
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
            self._cluster.doubt()
            raise
        except redis.ResponseError:
            raise  # the node answers
        except BaseException:  # also one who waited no longer
            self._cluster.doubt()
            raise


def client(url: str, *, limit: int, timeout_s: float) -> redis.asyncio.Redis:
    """A client of whatever the URL names, which repeats nothing by itself; `limit`: connections to each server. Raises
    ValueError as `store_pool.check` does."""

    def opened(server: str) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_pool(
            store_pool.pool(server, limit=limit, timeout_s=timeout_s, retry=Retry(NoBackoff(), 0))
        )

    if not url.startswith(store_pool.CLUSTERED):
        return opened(url)
    cluster = Cluster(url, opened, redis.asyncio.Redis.aclose, timeout_s=timeout_s)
    return ClusterRedis(cluster, lambda node: node, timeout_s=timeout_s)


async def _asking(client: redis.asyncio.Redis, args: tuple[Any, ...], options: dict[str, Any]) -> Any:  # noqa: ANN401
    """A command for a node to which its slot is being moved."""
    async with client.pipeline(transaction=False) as both:
        both.execute_command("ASKING")
        both.execute_command(*args, **options)
        return (await both.execute())[1]
