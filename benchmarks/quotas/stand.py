"""A store, a worker that heeds its grants, and real gateways whose minute is two seconds."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio

from benchmarks.common.served import free_port
from benchmarks.gateway.stand import await_ready, running
from benchmarks.quotas.worker import Worker, working
from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.tenants import TenantStore

WINDOW_MS = 2_000
ADMIN_KEY = "the-admin-key-of-this-measurement-0123456789"


@dataclass(frozen=True)
class Gateways:
    """Several over one store."""

    urls: tuple[str, ...]
    worker: Worker
    store: redis.asyncio.Redis
    server: EmbeddedStore

    async def tenant(self, name: str, limits: Mapping[str, int]) -> tuple[str, str]:
        """A tenant with one key: its public id, and all of it."""
        tenant = await TenantStore(self.store).create({"id": name, "limits": limits})
        made = await KeyStore(self.store).create(tenant, {"name": "bench"})
        return made.key.id, made.secret


@contextlib.asynccontextmanager
async def gateways(count: int, *, store_timeout_s: float = 5.0) -> AsyncIterator[Gateways]:
    """So many, each a process of its own, until the block ends. Raises StandError."""
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-bench-")))
        store = EmbeddedStore(directory / "store")
        stack.callback(store.stop)
        store.start()
        worker = await stack.enter_async_context(working(store.url))
        urls = []
        for number in range(count):
            port = free_port()
            variables: dict[str, Any] = {
                "FAIRLANE_REDIS_URL": store.url,
                "FAIRLANE_PORT": str(port),
                "FAIRLANE_ADMIN_KEY": ADMIN_KEY,
                "FAIRLANE_GATEWAY__STORE_TIMEOUT_S": str(store_timeout_s),
            }
            log = directory / f"gateway {number}.log"
            command = [sys.executable, "-m", "benchmarks.quotas.member", str(WINDOW_MS)]
            process = stack.enter_context(running(command, log, sorted(os.sched_getaffinity(0)), variables))
            urls.append(f"http://127.0.0.1:{port}")
            await asyncio.to_thread(await_ready, urls[-1], {f"gateway {number}": process}, directory)
        client = await stack.enter_async_context(redis.asyncio.from_url(store.url))
        yield Gateways(tuple(urls), worker, client, store)
