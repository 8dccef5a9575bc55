"""A worker whose queue has several shards: its room goes where jobs wait, by weight, and is never given twice."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
import redis.asyncio

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue.keys import prefix
from fairlane.scheduler.queue.shards import PATIENCE_MS, LaneHead, ShardNews, shard_names
from fairlane.scheduler.queue.types import JobState, Turn
from fairlane.worker.engine_thread import EngineThread
from fairlane.worker.reports import EngineObserver, Report, WorkerLoad
from fairlane.worker.shards import division
from tests.support.worker.listener import Listener
from tests.support.worker.scripted import ScriptedRunner, job, lease
from tests.support.worker.serving import QUEUE, gateway, working

pytestmark = pytest.mark.anyio

ROWS = 8
LEASE_S = 60.0
LIMIT_S = 30.0
LANES = tuple(LaneName)
IDLE = (LaneHead(0.0, -1.0), LaneHead(0.0, -1.0))


@asynccontextmanager
async def gateways(url: str, queue_name: str, *, lease_s: float = LEASE_S) -> AsyncIterator[list[Listener]]:
    """A gateway at each shard."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(gateway(url, lease_s=lease_s, shard=shard, gateway_id=f"gateway-{number}"))
            for number, shard in enumerate(shard_names(queue_name))
        ]


async def put(listener: Listener, *names: str, max_tokens: int = 4, **fields: Any) -> list[str]:
    """Put jobs with these fields, and return their ids."""
    job_ids = [f"{listener.gateway_id}-{name}" for name in names]
    for job_id in job_ids:
        given = job(job_id, gateway_id=listener.gateway_id, max_tokens=max_tokens)
        await listener.queue.put(msgspec.structs.replace(given, tenant=listener.gateway_id, **fields))
    return job_ids


async def begun(listener: Listener, runner: ScriptedRunner, job_ids: Sequence[str]) -> None:
    """Let steps run until all these jobs have a token."""
    async with asyncio.timeout(LIMIT_S):
        while not all(listener.count(job_id) for job_id in job_ids):
            runner.allow()
            await asyncio.sleep(0.02)


def test_room_that_a_shard_is_to_give_up_is_not_offered_before_it_has() -> None:
    divided, waiting = division.Division(LANES, (0.0, 0.1), 2, lambda _: 0), (LaneHead(0.0, 500.0), LaneHead(0.0, -1.0))
    given = [lease(str(number)) for number in range(4)]

    divided.turned(reported(ROWS), 0)
    halves = [asked(divided, shard) for shard in (0, 1)]
    divided.answered(1, answer([], IDLE))
    divided.given(0, given)
    divided.answered(0, answer(given, waiting))
    divided.turned(reported(4, applied=4), 4)
    left = asked(divided, 1)
    divided.woken(0)
    meanwhile = asked(divided, 0)
    divided.answered(0, answer([], waiting))
    divided.answered(1, answer([], IDLE))
    moved = asked(divided, 0)

    assert halves == [4, 4]
    assert (left, meanwhile, moved) == (2, 0, 2)


def test_a_shard_whose_jobs_fit_only_other_workers_gets_no_more_room() -> None:
    divided, waiting = division.Division(LANES, (0.0, 0.1), 2, lambda _: 0), (LaneHead(0.0, 500.0), LaneHead(0.0, -1.0))

    divided.turned(reported(ROWS), 0)
    for shard in (0, 1):
        asked(divided, shard)
    divided.answered(1, answer([], IDLE))
    divided.answered(0, answer([], waiting, lacks_room=False))
    divided.turned(reported(ROWS), 0)

    assert not any(intake.is_due for intake in divided.intakes)


def reported(rows: int, *, applied: int = 0) -> Report:
    """An engine's report of free rows that both lanes may use."""
    room = Capacity(dict.fromkeys(LANES, rows), dict.fromkeys(LANES, 100 * rows), max_sequences=ROWS, pool_tokens=800)
    return Report(applied=applied, capacity=room, jobs=0, load=WorkerLoad())


def answer(leases: list[Lease], head: tuple[LaneHead, ...], *, lacks_room: bool = True) -> Turn:
    jobs_wait = any(lane.waits for lane in head)
    return Turn(set(), leases, jobs_wait=jobs_wait, shard=ShardNews(False, jobs_wait and lacks_room, head))


def asked(divided: division.Division, shard: int) -> int:
    """The rows that a shard is offered."""
    found = divided.ask(shard)
    assert found is not None
    return found.capacity.sequences[LANES[0]]


async def test_a_shard_with_all_the_work_gets_all_the_rows(valkey_url: str) -> None:
    name, runner, many = f"{QUEUE}/4", ScriptedRunner(gated=True), [str(number) for number in range(ROWS)]
    async with gateways(valkey_url, name) as shards, working(valkey_url, runner=runner, queue_name=name):
        first = await put(shards[2], *many, max_tokens=25)
        await begun(shards[2], runner, first)
        runner.open()
        await shards[2].ended(*first)
        await shards[1].ended(*await put(shards[1], *many))


async def test_a_job_that_needs_the_room_of_all_shards_gets_it(valkey_url: str) -> None:
    name = f"{QUEUE}/4"
    async with gateways(valkey_url, name) as shards, working(valkey_url, queue_name=name):
        for shard in (3, 0):
            await shards[shard].ended(*await put(shards[shard], "wide", n=ROWS))


async def test_latency_work_of_one_shard_preempts_throughput_work_of_another(valkey_url: str) -> None:
    name, runner, rows = f"{QUEUE}/2", ScriptedRunner(gated=True), 2
    async with (
        gateways(valkey_url, name) as shards,
        working(valkey_url, runner=runner, queue_name=name, max_sequences=rows),
    ):
        low = await put(shards[0], *map(str, range(rows + 2)), max_tokens=100, lane=LaneName.THROUGHPUT)
        await begun(shards[0], runner, low[:rows])
        [urgent] = await put(shards[1], "urgent")
        while (record := await shards[1].queue.record(urgent)) is None or record.state is JobState.QUEUED:
            runner.allow()
            await asyncio.sleep(0.05)

        assert not shards[0].ends
        runner.open()
        await shards[1].ended(urgent)


async def test_two_roots_in_two_shards_share_a_worker_by_weight(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, name, tokens = 512.0, f"{QUEUE}/2", 16
    monkeypatch.setattr(division, "QUEUE_WINDOW", window)
    weights = [1.0, 3.0]
    async with gateways(valkey_url, name) as shards:
        for listener, weight in zip(shards, weights, strict=True):
            await put(listener, *map(str, range(round(110 * weight))), max_tokens=tokens, weight=weight)
        while (await shards[1].queue.depths())[LaneName.LATENCY].oldest_wait_ms <= PATIENCE_MS:
            pass
        async with working(valkey_url, queue_name=name) as worker:
            async with asyncio.timeout(LIMIT_S):
                await shards[0].until(lambda: len(shards[0].ends) >= 100)
            served = [
                len(listener.ends) * (5 + 2 * tokens) / weight for listener, weight in zip(shards, weights, strict=True)
            ]
            worker.server.lifecycle.stop()

    assert abs(served[0] - served[1]) < 2 * window, served


class RoomViews(EngineObserver):
    """The free rows that the engine has reported, each with the jobs that it had been given by then."""

    def __init__(self) -> None:
        self.views: list[tuple[int, frozenset[str]]] = [(0, frozenset())]
        self.thread: EngineThread | None = None
        self._given: frozenset[str] = frozenset()

    def took(self, leases: Iterable[Lease]) -> None:
        self._given |= {lease.job.job_id for lease in leases}

    def turned(self, report: Report) -> None:
        if self.thread is not None and report.applied >= self.thread.commands_sent:
            self.views.append((report.capacity.sequences[LaneName.LATENCY], self._given))


def latency_rows(room: Any) -> int:
    """The rows of a registered room (`lua/lib/rooms.lua`): a list, or a map if it has named fields too."""
    rows: int = room[3] if isinstance(room, dict) else room[2]
    return max(0, rows)


async def test_no_room_is_given_twice(valkey_url: str) -> None:
    """What the shards may lease into, and have leased unknown to the engine, is never more than what is free."""
    name, done, observed, checked = f"{QUEUE}/3", asyncio.Event(), RoomViews(), list[bool]()
    keys = [prefix(shard) for shard in shard_names(name)]

    async def watch() -> None:
        async with redis.asyncio.from_url(valkey_url) as client:
            while not done.is_set():
                first = len(observed.views) - 1
                async with client.pipeline(transaction=True) as pipe:
                    for key in keys:
                        pipe.hget(f"{key}rooms", "worker")
                        pipe.zrange(f"{key}held:worker", 0, -1)
                    found = await pipe.execute()
                rows = sum(latency_rows(msgspec.msgpack.decode(packed)) for packed in found[::2] if packed)
                held = {job_id.decode() for jobs in found[1::2] for job_id in jobs}
                checked.append(any(rows + len(held - given) <= free for free, given in observed.views[first:]))
                await asyncio.sleep(0)

    async with (
        gateways(valkey_url, name) as shards,
        working(valkey_url, queue_name=name, observers=[observed]) as worker,
    ):
        observed.thread = worker.thread
        await shards[0].ended(*await put(shards[0], "first"))
        watching = asyncio.create_task(watch())
        everything: list[list[str]] = [[], [], []]
        for number in range(90):
            shard = number * number % 3
            everything[shard] += await put(shards[shard], str(number), max_tokens=1 + number % 7)
            if number % 30 == 0:
                await shards[shard].ended(*everything[shard][:-8])
        for listener, job_ids in zip(shards, everything, strict=True):
            await listener.ended(*job_ids)
        done.set()
        await watching

    assert len(checked) > 20
    assert all(checked)


async def test_a_worker_that_dies_returns_its_jobs_in_all_shards(valkey_url: str) -> None:
    name, gated = f"{QUEUE}/2", ScriptedRunner(gated=True)
    async with gateways(valkey_url, name, lease_s=1.0) as shards, AsyncExitStack() as stack:
        dying = await stack.enter_async_context(
            working(valkey_url, lease_s=1.0, runner=gated, worker_id="dies", queue_name=name)
        )
        jobs = [(listener, (await put(listener, "job", max_tokens=60))[0]) for listener in shards]
        for listener, job_id in jobs:
            await begun(listener, gated, [job_id])
        dying.task.cancel()
        async with working(valkey_url, lease_s=1.0, worker_id="lives", queue_name=name):
            for listener, job_id in jobs:
                await listener.ended(job_id)
                assert listener.ends[job_id].outcome is Outcome.FINISHED
                assert (await listener.record_of_end(job_id)).worker_id == "lives"
        gated.open()
        with pytest.raises(asyncio.CancelledError):
            await stack.aclose()
