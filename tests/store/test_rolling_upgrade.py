"""Gateways and workers of two versions of the code side by side on one store, while streams run.

FAIRLANE_TEST_PREVIOUS=/path/to/checkout names the older one: a release, or any commit that the changelog says may run
beside this one."""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from tests.support.system.chaos import Process
from tests.support.system.harness import ADMIN_KEY
from tests.support.system.traffic import HERE, LONG, WAIT_S, Answer, Fleet

PREVIOUS = Path(os.environ.get("FAIRLANE_TEST_PREVIOUS", "")).absolute()
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.thorough,
    pytest.mark.skipif("FAIRLANE_TEST_PREVIOUS" not in os.environ, reason="FAIRLANE_TEST_PREVIOUS names no checkout"),
]
MODEL = "tiny"
TENANTS = ("acme", "blue")
# Whole answers of each client after each replacement.
SOME = 3


class Upgrade:
    """A fleet of the older code whose processes are replaced one by one."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.gateways: list[tuple[Process, str]] = []
        self.workers: list[Process] = []
        self.long: list[asyncio.Task[Answer]] = []
        self.short: list[asyncio.Task[list[Answer]]] = []
        self.ended = asyncio.Event()

    async def start(self, checkout: Path) -> None:
        self.workers.append(self.fleet.worker(MODEL, checkout))
        self.gateways = [await self.fleet.gateway(checkout) for _ in range(2)]
        self.fleet.urls = [url for _, url in self.gateways]
        await self.served(1)
        for tenant in TENANTS:
            await self.fleet.tenant(tenant)
        self.short = [asyncio.create_task(self.fleet.keep_asking(tenant, MODEL, self.ended)) for tenant in TENANTS]

    async def served(self, count: int) -> None:
        """Wait until this number of workers has registered."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        async with httpx.AsyncClient(base_url=self.fleet.urls[-1], headers=headers) as client, asyncio.timeout(WAIT_S):
            while len((await client.get("/admin/v1/workers")).json()["data"]) != count:  # noqa: ASYNC110 - from outside
                await asyncio.sleep(0.1)

    async def stream(self) -> None:
        """Begin a long stream through each gateway, and let it get its first tokens."""
        begun = [asyncio.create_task(self.fleet.ask("acme", MODEL, LONG, url)) for url in self.fleet.urls]
        self.long += begun
        await asyncio.sleep(1.0)

    async def replace_gateways(self, checkout: Path) -> None:
        """Replace each gateway; the old one finishes its streams, as after SIGTERM."""
        for process, url in list(self.gateways):
            await self.stream()
            made = await self.fleet.gateway(checkout)
            self.fleet.urls.append(made[1])
            self.fleet.urls.remove(url)
            await asyncio.sleep(1.0)  # clients that were about to ask the old one have done so
            await self.ends(process)
            self.gateways = [*self.gateways[1:], made]

    async def replace_workers(self, checkout: Path) -> None:
        """Start the new worker, then let the old one finish and leave."""
        await self.stream()
        old, self.workers = self.workers, [self.fleet.worker(MODEL, checkout)]
        await self.served(2)
        for process in old:
            await self.ends(process)
        await self.stream()

    async def ends(self, process: Process) -> None:
        assert process.running is not None
        process.running.terminate()
        status = await asyncio.to_thread(process.running.wait, WAIT_S)
        assert status == 0, self.fleet.log(process)

    async def stop(self) -> list[Answer]:
        long = await asyncio.gather(*self.long)
        self.ended.set()
        return [*long, *(each for found in await asyncio.gather(*self.short) for each in found)]


@pytest.mark.parametrize("first", ["gateways", "workers"])
@pytest.mark.parametrize("way", ["upgrade", "rollback"])
async def test_two_versions_serve_side_by_side_and_each_stream_is_whole_and_charged_once(
    tmp_path: Path, first: str, way: str
) -> None:
    begin, end = (PREVIOUS, HERE) if way == "upgrade" else (HERE, PREVIOUS)
    store = EmbeddedStore(tmp_path / "store")
    store.start()
    try:
        with Fleet(tmp_path, store.url) as fleet:
            upgrade = Upgrade(fleet)
            await upgrade.start(begin)
            steps = [upgrade.replace_gateways, upgrade.replace_workers]
            for step in steps if first == "gateways" else reversed(steps):
                await step(end)
            answers = await upgrade.stop()
            await fleet.check(answers)
    finally:
        store.stop()

    ends = Counter(answer.end for answer in answers)
    sys.stdout.write(f"\n{way}, {first} first: {dict(ends)}\n")
    assert ends.keys() == {"whole"}
