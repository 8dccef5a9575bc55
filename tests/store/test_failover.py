"""Stores that Sentinels watch: every kind of call finds the master, and the next one when it changes."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlane.cli.embedded_store import valkey_binary
from fairlane.quotas.scripts import Database
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import Progress
from fairlane.store import cluster as store_cluster
from fairlane.store.connections import Connections, server
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import StoreLink
from tests.conftest import redis_binary
from tests.support.scheduler.queues import PLENTY, TakingQueue, job
from tests.support.store.sentinel import Certificate, Watch, watched

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
WAIT_S = 60.0


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    with watched(tmp_path, valkey_binary()) as made:
        yield made


async def ask(store: Connections) -> None:
    """Each way that calls take: a script, a plain command, and a reader's."""
    await Database(store.short).run("watch", "watched", 1_000)
    await store.patient.set("plain", 1)


async def until_asked(store: Connections) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(*STORE_ERRORS):
                return await ask(store)
            await asyncio.sleep(0.05)


async def test_calls_follow_the_master_when_it_dies(watch: Watch) -> None:
    store = server(watch.url, timeout_s=2.0, limit=4)
    reader = store.reader()
    await ask(store)
    first: Any = await store.short.xadd("news", {"a": "1"})
    assert await reader.xread({"news": "0-0"}, count=1) == [(b"news", [(first, {b"a": b"1"})])]
    client = store_cluster.client(watch.url, limit=4, timeout_s=2.0)
    worker = Worker(TakingQueue(client, "tiny@0", DEFAULT_LANES))
    queue = RedisQueue(store.short, "tiny@0", DEFAULT_LANES)
    await queue.put(job("before"))
    await worker.takes("before")
    watch.replicated()

    watch.kill_master()
    await until_asked(store)

    second = await store.short.xadd("news", {"b": "2"})
    async with asyncio.timeout(WAIT_S):
        assert await reader.xread({"news": first.decode()}, count=1) == [(b"news", [(second, {b"b": b"2"})])]
    assert await store.short.get("plain") == b"1"
    await queue.put(job("after"))
    async with asyncio.timeout(WAIT_S):
        await worker.takes("after")
        assert not await worker.refused("before")
    await reader.aclose()
    await store.aclose()
    await client.aclose()


async def test_sentinels_and_servers_may_speak_tls_alone(tmp_path: Path) -> None:
    with watched(tmp_path, binary_with_tls(), certificate(tmp_path)) as watch:
        store = server(watch.url, timeout_s=2.0, limit=4)

        await ask(store)

        assert await store.short.get("plain") == b"1"
        await store.aclose()


class Worker:
    """What a worker's process does with its queue, and its patience."""

    def __init__(self, queue: TakingQueue) -> None:
        self._queue = queue
        self._link = StoreLink(2.0)
        self._epochs: dict[str, int] = {}

    async def takes(self, job_id: str) -> None:
        """What is new is this job."""
        leases = await self._link.persist("take", partial(self._queue.take, "w1", PLENTY))
        self._epochs |= {lease.job.job_id: lease.epoch for lease in leases}
        assert [lease.job.job_id for lease in leases] == [job_id]

    async def refused(self, job_id: str) -> set[str]:
        """What the store no longer takes from it when it says that a job has ended."""
        end = Progress(job_id, self._epochs[job_id], ends=Outcome.FINISHED)
        report = partial(self._queue.report, "w1", [end], serial=self._queue.new_serial())
        return await self._link.persist("report", report)


def binary_with_tls() -> str:
    binary = redis_binary()
    if b"libssl" not in Path(binary).read_bytes():
        pytest.skip("redis-server speaks no TLS")
    return binary


def certificate(directory: Path) -> Certificate:
    """A fresh one."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    made = Certificate(directory / "cert.pem", directory / "key.pem")
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=store"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run([openssl, *request.split(), *subject], check=True, capture_output=True)
    return made
