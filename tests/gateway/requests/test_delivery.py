"""The dispatcher over a real queue: strays are cancelled, ended records go, lines open and close."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.gateway.pipeline import delivery
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.delivery import Dispatcher, Link
from fairlane.gateway.runtime import fleet as runtime_fleet
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Event, Finished, Job, Outcome, TokenDelta
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import JobState, LaneFull, Put
from fairlane.store.bounds import PER_CALL
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
    await until(lambda: served.worker.cancelled == [job.id])
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
    await served.worker.queue.put(stray)

    await until(lambda: served.worker.cancelled == ["stray"])
    await forgotten(served, "stray")
    assert served.resources.fleet.dispatcher.wasted_tokens == 2


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
    """A queue with late news of as many jobs; notes the calls of each round, which begins with `reclaim`."""

    def __init__(self) -> None:
        self.rounds: list[list[tuple[str, int]]] = []
        self.cancelled: list[str] = []
        self.news: list[Event] = []
        for number in range(MANY):
            stray = f"stray{number}"
            self.news.append(TokenDelta(job_id=stray, epoch=1, choice=0, first_index=0, token_ids=(1,)))
            self.news.append(Finished(job_id=f"ended{number}", epoch=1, outcome=Outcome.FINISHED))
        self.done = asyncio.Event()

    async def read_events(self, gateway_id: str, last_id: str, block_ms: int) -> tuple[str, list[Event]]:
        if last_id == "1-0":
            await asyncio.Event().wait()
        return "1-0", self.news

    async def reclaim(self) -> int:
        self.rounds.append([])
        if len(set(self.cancelled)) == MANY:
            self.done.set()
        return 0

    async def cancel(self, job_id: str) -> Any:
        """A worker that does not answer holds every other one."""
        self.rounds[-1].append(("cancel", 1))
        self.cancelled.append(job_id)
        return SimpleNamespace(state=JobState.LEASED if int(job_id[5:]) % 2 else JobState.ENDED)

    async def forget(self, job_ids: Iterable[str]) -> None:
        self.rounds[-1].append(("forget", len(list(job_ids))))


async def test_strays_and_ended_jobs_of_an_outage_go_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "TEND_EVERY_S", 0.0)
    queue: Any = BusyQueue()

    async def close() -> None:
        """Nothing is open."""

    link = Link(calls=queue, reader=queue, close=close)
    dispatcher = Dispatcher("gw", lambda _: link, AllOpenRequests(DEFAULT_LANES), kept_s=0.0)
    dispatcher.queue("model@1")
    async with asyncio.timeout(10):
        await queue.done.wait()
    await dispatcher.aclose()

    forgotten = [count for calls in queue.rounds for name, count in calls if name == "forget"]
    assert max(sum(name == "cancel" for name, _ in calls) for calls in queue.rounds) == PER_CALL
    assert (sum(forgotten), max(forgotten)) == (MANY, PER_CALL)
