"""The dispatcher over a real queue: strays are refused, ended records go, lines open and close."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.pipeline import delivery
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.delivery import Dispatcher, QueueConnections
from fairlane.gateway.runtime import fleet as runtime_fleet
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Event, Job, Outcome
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import JobState, LaneFull, Progress, Put
from fairlane.store.bounds import PER_CALL
from tests.scheduler.links.test_links import dialling
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, WAIT_S, Served, error_of, serving, settings, until

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000


@pytest.fixture
async def served(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(runtime_fleet, "KEPT_LEASES", 0.0)  # else a record stays for more than a minute
    monkeypatch.setattr(runtime_fleet, "KEPT_MORE_S", 0.0)
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant()
        yield opened


async def forgotten(served: Served, job_id: str) -> None:
    """The queue knows nothing of it any more."""
    async with asyncio.timeout(WAIT_S):
        while await served.worker.queue.record(job_id) is not None:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.02)


async def test_a_settled_jobs_record_goes(served: Served) -> None:
    await served.post(CHAT, ASKED)

    await forgotten(served, served.worker.seen[0].job.job_id)


async def test_the_record_of_a_job_whose_end_is_reported_late_goes_too(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, dispatcher = served.worker.queue, served.resources.fleet.dispatcher
    report, is_due = queue.report, asyncio.Event()

    async def report_late(worker_id: str, items: Sequence[Progress], **options: Any) -> set[str]:
        if items:
            await is_due.wait()
        return await report(worker_id, items, **options)

    monkeypatch.setattr(queue, "report", report_late)
    await served.post(CHAT, ASKED)
    await served.landed()
    job_id = served.worker.seen[0].job.job_id
    await dispatcher.tend(queue.name)
    assert await queue.record(job_id) is not None

    is_due.set()
    await served.worker.outlet.emptied()
    await dispatcher.tend(queue.name)

    assert await queue.record(job_id) is None


async def test_the_records_of_a_gateway_that_stops_expire_when_it_would_have_deleted_them(valkey_url: str) -> None:
    async with serving(settings(valkey_url)) as served:
        await served.tenant()
        await served.post(CHAT, ASKED)
        await served.worker.outlet.emptied()
        kept_ms, queue = 1e3 * served.resources.fleet.dispatcher.kept_s, served.worker.queue

        await served.stop()

        left_ms = await served.store.pttl(f"fl:{{{queue.name}}}:job:{served.worker.seen[0].job.job_id}")
        assert 0 < left_ms <= kept_ms + 1_000


async def test_a_job_stopped_by_a_string_is_cancelled_and_its_record_goes(served: Served) -> None:
    served.worker.words = "The capital of France is Paris. " * 8
    assert (await served.post(CHAT, {**ASKED, "stop": ["France"]})).status_code == 200

    await until(lambda: not served.worker.leases)
    await forgotten(served, served.worker.seen[0].job.job_id)


async def test_what_is_said_of_a_job_where_it_is_no_longer_is_not_heard(served: Served) -> None:
    """Its job was moved to another queue, and the store has given it out here all the same."""
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: [job.begun for job in served.resources.fleet.dispatcher.jobs.values()] == [True])
    (job,) = served.resources.fleet.dispatcher.jobs.values()
    await until(lambda: job.choices[0].published == 2)

    served.resources.fleet.dispatcher.move(job, "tiny@elsewhere")
    served.worker.limit = 3
    await until(lambda: not served.worker.leases)
    heard = job.choices[0].published, job.finished
    running.cancel()
    await asyncio.wait({running})

    assert heard == (2, None)


async def test_a_job_that_speaks_to_nobody_is_cancelled(served: Served) -> None:
    """As one that was put by a call whose answer never came."""
    served.worker.limit = 2
    stray = Job(
        job_id="stray",
        gateway_id=served.resources.gateway_id,
        tenant="acme",
        lane=LaneName.LATENCY,
        prompt=(5,),
        max_tokens=50,
        granted_until=50,
        ttft_ms=1_000.0,
        tpot_ms=100.0,
    )
    stray = msgspec.structs.replace(stray, gateway_address=served.resources.fleet.dispatcher.address)
    await served.worker.queue.put(stray)

    async with asyncio.timeout(WAIT_S):
        while (record := await served.worker.queue.record("stray")) is None or record.state is not JobState.ENDED:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.02)
    assert (record.outcome, not served.worker.leases) == (Outcome.CANCELLED, True)


async def test_tokens_of_a_refused_request_are_wasted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    put = RedisQueue.put

    async def full_for_the_second(queue: RedisQueue, job: Job, **given: Any) -> Put:
        if job.follows:
            await until(lambda: len(served.worker.produced.get(booking_of(job), ())) == 3)
            raise LaneFull(job.lane, 1, 1_000)
        return await put(queue, job, **given)

    served.worker.limit = 3
    monkeypatch.setattr(RedisQueue, "put", full_for_the_second)
    body = {"model": "tiny", "prompt": [[5], [6]], "max_tokens": 9}

    refused = await served.post(COMPLETIONS, body)
    await served.landed()

    assert error_of(refused) == (429, "overloaded")
    assert await served.ledger() == []
    assert served.resources.fleet.dispatcher.wasted_tokens == 3
    assert b"fairlane_gateway_wasted_tokens_total 3.0" in served.resources.telemetry.exposition()


async def test_links_are_counted_while_open_and_when_refused_or_lost(valkey_url: str, tmp_path: Path) -> None:
    killed = tmp_path / f"{'g' * 8}-{'0' * 8}.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(killed))
    async with serving(settings(valkey_url, section={"link_host": str(tmp_path)})) as served:
        await served.tenant()
        served.worker.limit = 2
        fleet, telemetry = served.resources.fleet, served.resources.telemetry
        asking = asyncio.create_task(served.post(CHAT, ASKED))
        await until(lambda: [job.begun for job in fleet.dispatcher.jobs.values()] == [True])
        assert (links_of(telemetry), killed.exists()) == ((1, 0, 0), False)

        stranger = dialling(fleet.dispatcher.address, secret=b"x" * 32, gateway_id=fleet.dispatcher.gateway_id)
        async with stranger:
            await until(lambda: links_of(telemetry)[1] > 0)
        (link,) = fleet._links.links
        link.close()
        await until(lambda: links_of(telemetry)[2] == 1)
        served.worker.limit = None
        assert (await asking).status_code == 200

        (idle,) = fleet._links.links
        idle.close()
        await until(lambda: idle not in fleet._links.links)
        assert links_of(telemetry)[2] == 1  # nothing was lost with it


def links_of(telemetry: Telemetry) -> tuple[float, ...]:
    """Return how many links are open, were refused and were lost."""
    shown = telemetry.exposition().decode()
    names = ("links", "links_refused_total", "links_lost_total")
    return tuple(float(re.findall(rf"^fairlane_gateway_{name} (.+)$", shown, re.MULTILINE)[0]) for name in names)


def booking_of(job: Job) -> str:
    return job.job_id.rpartition("-")[0]


async def test_lines_follow_the_fleet_and_the_jobs(served: Served) -> None:
    dispatcher, name = served.resources.fleet.dispatcher, served.worker.queue.name
    served.worker.limit = 1
    running = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: bool(dispatcher.jobs) and bool(served.worker.leases))

    dispatcher.keep_lines(set())
    served.worker.limit = None

    assert (await running).status_code == 200
    record = await dispatcher.queue(name).record(served.worker.seen[0].job.job_id)
    assert record is None or record.state is JobState.ENDED


async def test_the_record_of_what_may_be_sent_again_stays_as_long_as_its_key(served: Served) -> None:
    """Where it was not answered; what was answered is replayed, and goes at once."""
    served.worker.limit = 2
    asking = asyncio.create_task(served.post(CHAT, ASKED, idempotency_key="again"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    served.worker.fails = "out of order"
    await asking
    served.worker.fails, served.worker.limit = "", None
    broken, queue = served.worker.seen[0].job.job_id, served.worker.queue
    keys = [f"fl:{{{queue.name}}}:job:{broken}", f"fl:{{{queue.name}}}:ids:{broken}:0"]

    async with asyncio.timeout(WAIT_S):
        while max([await served.store.pttl(key) for key in keys]) > DAY_MS:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.02)

    assert min([await served.store.pttl(key) for key in keys]) > DAY_MS - 60_000
    await served.post(CHAT, ASKED, idempotency_key="again")
    await forgotten(served, served.worker.seen[1].job.job_id)
    assert not [key async for key in served.store.scan_iter("fl:quota:*runs:*")]


MANY = 10 * PER_CALL


class BusyQueue:
    """A queue without events, which notes how many records each call forgets."""

    lapse_ms = 0

    def __init__(self) -> None:
        self.forgotten: list[int] = []
        self.done = asyncio.Event()

    async def read_events(self, gateway_id: str, last_id: str, block_ms: int) -> tuple[str, list[Event]]:
        await asyncio.Event().wait()
        return last_id, []

    async def reclaim(self) -> int:
        return 0

    async def forget(self, job_ids: Iterable[str]) -> set[str]:
        self.forgotten.append(len(list(job_ids)))
        if sum(self.forgotten) == MANY:
            self.done.set()
        return set()

    async def keep(self, until_ms: Mapping[str, int]) -> set[str]:
        return set()


async def test_ended_jobs_of_an_outage_go_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "TEND_EVERY_S", 0.0)
    queue: Any = BusyQueue()

    async def close() -> None:
        """Nothing is open."""

    link = QueueConnections(calls=queue, reader=queue, close=close)
    dispatcher = Dispatcher("gw", lambda _: link, AllOpenRequests(DEFAULT_LANES), kept_s=0.0)
    dispatcher.queue("model@1")
    for number in range(MANY):
        dispatcher.forget("model@1", f"ended{number}")
    async with asyncio.timeout(10):
        await queue.done.wait()
    await dispatcher.aclose()

    assert max(queue.forgotten) == PER_CALL


class QueueOfADeadWorker(BusyQueue):
    """A queue with a worker whose lease expires soon."""

    def __init__(self) -> None:
        super().__init__()
        self.reclaimed = 0

    async def reclaim(self) -> int:
        self.reclaimed += 1
        self.lapse_ms = 20 if self.reclaimed == 1 else 0
        if self.reclaimed == 2:
            self.done.set()
        return 0


async def test_jobs_of_a_dead_worker_return_when_its_lease_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "TEND_EVERY_S", 3_600.0)
    queue: Any = QueueOfADeadWorker()

    async def close() -> None:
        """Nothing is open."""

    link = QueueConnections(calls=queue, reader=queue, close=close)
    dispatcher = Dispatcher("gw", lambda _: link, AllOpenRequests(DEFAULT_LANES), kept_s=0.0)
    dispatcher.queue("model@1")
    async with asyncio.timeout(10):
        await queue.done.wait()
    await dispatcher.aclose()
