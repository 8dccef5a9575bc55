"""Calls per script of our store clients and of redis-py's own: `python -m tests.support.store.clients_bench`.

Each client runs 100 scripts one after another, then 100 at once, with at most 64 connections to each server.
"""

import asyncio
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import redis.asyncio
import uvloop
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import BlockingConnectionPool

from fairlane.cli.embedded_store import EmbeddedStore, valkey_binary
from fairlane.store.connections import connections
from tests.support.store.cluster import Masters

TIMES = 100
LIMIT = 64
TIMEOUT_S = 0.25
SCRIPT = "return redis.call('INCR', KEYS[1])"
DIGEST = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

Client = redis.asyncio.Redis | RedisCluster


class Calls:
    """Counts this thread's Python and C calls. The loop is uvloop, whose own work is neither."""

    count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        self.count += event in ("call", "c_call")


async def measure(name: str, client: Client) -> None:
    """Print one row: calls per script, and how many scripts failed."""
    await client.eval(SCRIPT, 1, "key")
    await client.evalsha(DIGEST, 1, "key")
    alone, together = Calls(), Calls()
    with alone.counting():
        for _ in range(TIMES):
            await client.evalsha(DIGEST, 1, "key")
    with together.counting():
        replies = await asyncio.gather(*(_script(client) for _ in range(TIMES)), return_exceptions=True)
    failed = sum(isinstance(reply, BaseException) for reply in replies)
    sys.stdout.write(f"| {name} | {alone.count / TIMES:,.0f} | {together.count / TIMES:,.0f} | {failed} |\n")
    await client.aclose()


async def _script(client: Client) -> None:
    await client.evalsha(DIGEST, 1, "key")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, masters = EmbeddedStore(Path(folder) / "store"), Masters(Path(folder), valkey_binary())
        store.start()
        masters.begin()
        try:
            masters.agree()
            sys.stdout.write(
                "| client | calls, one at a time | calls, 100 at once | failed |\n| --- | --- | --- | --- |\n"
            )
            pool = BlockingConnectionPool.from_url(store.url, max_connections=LIMIT, socket_timeout=TIMEOUT_S)
            await measure("redis-py's `Redis`", redis.asyncio.Redis.from_pool(pool))
            await measure("ours", connections(store.url, timeout_s=TIMEOUT_S, limit=LIMIT).short)
            theirs = RedisCluster(
                host="127.0.0.1", port=masters.ports[0], max_connections=LIMIT, socket_timeout=TIMEOUT_S
            )
            await measure("redis-py's `RedisCluster`", theirs)
            await measure("ours, Cluster", connections(masters.url, timeout_s=TIMEOUT_S, limit=LIMIT).short)
        finally:
            store.stop()
            masters.stop()


if __name__ == "__main__":
    uvloop.run(main())
