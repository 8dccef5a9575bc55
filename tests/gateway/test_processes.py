"""Several gateway processes behind one port: they share the work, one's death is nobody else's, all end together."""

import asyncio
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway.served import ASKED, CHAT, OPERATOR, WAIT_S, Served, serving, settings
from tests.support.gateway.spawned import process

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@dataclass
class Group:
    """Two processes behind one port."""

    started: "subprocess.Popen[str]"
    base: str
    key: str
    served: Served

    def members(self) -> dict[str, psutil.Process]:
        """The processes by index."""
        found = psutil.Process(self.started.pid).children()
        return {index: child for child in found for index in "01" if f'"index":{index}' in " ".join(child.cmdline())}

    def client(self) -> httpx.AsyncClient:
        """With connections of its own."""
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.base, timeout=WAIT_S, headers=headers)

    async def ask(self) -> None:
        """One request on a new connection."""
        async with self.client() as client:
            (await client.post(CHAT, json=ASKED)).raise_for_status()

    async def counted(self, name: str) -> Counter[str]:
        """A metric's sum by process, from whichever process a new connection finds."""
        async with self.client() as client:
            text = (await client.get("/metrics", headers=OPERATOR)).text
        sums: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"fairlane_gateway_{name}":
                    sums[sample.labels["process"]] += int(sample.value)
        return sums

    async def both_up(self) -> None:
        """Both serve."""
        async with asyncio.timeout(WAIT_S):
            while await self.counted("process_up") != {"0": 1, "1": 1}:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.05)

    async def holder(self) -> str:
        """Who has the one request that is in the air."""
        return next(index for index, count in (await self.counted("in_flight")).items() if count)


def lives(process: psutil.Process) -> bool:
    """It has not ended, whether or not anybody has taken note of that."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def both(url: str) -> AsyncIterator[Group]:
    async with (
        serving(settings(url)) as served,
        process(url, FAIRLANE_GATEWAY__PROCESSES="2") as (started, base),
    ):
        opened = Group(started, base, await served.tenant(), served)
        await opened.both_up()
        yield opened


@pytest.fixture
async def group(valkey_url: str) -> AsyncIterator[Group]:
    """A group of one test, which may end it."""
    async with both(valkey_url) as opened:
        yield opened


@pytest.fixture(scope="module")
async def lasting_group(file_url: str) -> AsyncIterator[Group]:
    async with both(file_url) as opened:
        yield opened


async def test_both_serve_and_either_tells_the_metrics_of_both(lasting_group: Group) -> None:
    group, sent = lasting_group, 0
    async with asyncio.timeout(WAIT_S):
        while len(+await group.counted("requests_total")) < 2:
            await asyncio.gather(*(group.ask() for _ in range(10)))
            sent += 10
        while (await group.counted("requests_total")).total() < sent:  # noqa: ASYNC110 - counted after the answer
            await asyncio.sleep(0.05)

    scrapes = await asyncio.gather(*(group.counted("requests_total") for _ in range(10)))

    assert [scrape.total() for scrape in scrapes] == [sent] * 10
    assert all(scrape == scrapes[0] for scrape in scrapes)


async def test_one_that_is_killed_returns_while_the_others_stream_goes_on(lasting_group: Group) -> None:
    group = lasting_group
    group.served.worker.limit = 2
    async with group.client() as client, client.stream("POST", CHAT, json={**ASKED, "stream": True}) as got:
        lines = got.aiter_lines()
        await anext(lines)
        holder = await group.holder()
        before = group.members()
        other = next(index for index in before if index != holder)

        before[other].kill()
        before[other].wait(WAIT_S)
        await group.both_up()
        after = group.members()
        group.served.worker.limit = None
        rest = [line async for line in lines if line]

    assert rest[-1] == "data: [DONE]"
    assert after[holder] == before[holder]
    assert after[other] != before[other]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
async def test_a_signal_drains_both_and_leaves_no_process(group: Group, number: signal.Signals) -> None:
    members = group.members()
    group.served.worker.limit = 2
    async with group.client() as client, client.stream("POST", CHAT, json={**ASKED, "stream": True}) as got:
        lines = got.aiter_lines()
        await anext(lines)

        group.started.send_signal(number)
        group.served.worker.limit = None
        rest = [line async for line in lines if line]

    assert rest[-1] == "data: [DONE]"
    assert await asyncio.to_thread(group.started.wait, WAIT_S) == 0
    assert not any(lives(member) for member in members.values())


async def test_none_outlives_the_one_that_holds_the_port(group: Group) -> None:
    members = list(group.members().values())

    group.started.kill()

    async with asyncio.timeout(WAIT_S):
        while any(lives(member) for member in members):  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.01)
