"""The queue in memory and the queue in Redis answer any calls in any order alike, and keep the invariants.

Each operation draws its arguments from a `Random` of its own, so that hypothesis chooses, and shrinks, what is called
in which order; `burst` adds stretches dense enough for jobs to meet in the order of `take`.
"""

import asyncio
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue import take_order as lane_order
from fairlane.scheduler.queue import take_order as lane_places
from fairlane.scheduler.queue import types as queue_types
from fairlane.scheduler.queue.prefix_affinity import DIGEST_BYTES
from fairlane.scheduler.queue.types import JobRecord, JobState, Progress, Put, QueueError
from fairlane.store import bounds
from tests.support.scheduler.queues import Clock, MemoryQueue, Queue, StoredQueue, job, lanes
from tests.support.store import topology

EXAMPLES = int(os.environ.get("FAIRLANE_TEST_EXAMPLES", "30"))
LEASE_MS = 1_000
TENANTS = "red", "green", "blue", "cyan", "pink", "gold", "grey"
GATEWAYS, WORKERS = ("g1", "g2"), ("w1", "w2", "w3")
BEGINNINGS = tuple(name * DIGEST_BYTES for name in (b"a", b"b", b"c"))
FIGURES = lanes(
    latency={"max_queued": 12, "max_wait_ms": 6_000.0},
    throughput={"max_queued": 12, "max_wait_ms": 9_001.0, "share_floor": 0.25},
)
randoms = st.builds(Random, st.integers(0, 2**32 - 1))


def yielding(rng: Random) -> Yielding:
    """What a lane's own work in some worker would yield."""
    return Yielding(
        begun=tuple(rng.sample(TENANTS, rng.randint(0, 3))),
        waiting=tuple(rng.sample(TENANTS, rng.choice([0, 0, 1]))),
        jobs=rng.choice([0, 1, 2]),
        sequences=rng.choice([0, 1, 3]),
        kv_tokens=rng.choice([15, 60, 1_000]),
        shorter_than=rng.choice([0, 0, 10, 11, 100]),
    )


class Twins(RuleBasedStateMachine):
    """Sends every call to both queues; `url` is the store of the one."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._run = self._runner.get_loop().run_until_complete  # Runner.run sets signal handlers for every call
        self.clock = Clock()
        self.store = topology.client(self.url)
        self._run(self._empty())
        figures: dict[str, Any] = {"lease_ms": LEASE_MS, "window": 300.0, "clock": self.clock}
        self.memory, self.stored = MemoryQueue(FIGURES, **figures), StoredQueue(self.store, FIGURES, **figures)
        self.numbers = itertools.count()
        self.job_ids: list[str] = []
        self.followers: set[str] = set()
        self.leases: list[Lease] = []
        self.epochs: dict[str, int] = defaultdict(int)
        self.reports: list[tuple[str, list[Progress], str]] = []
        # Ends that the gateway learns from the worker, and all others.
        self.ended_by_worker: set[str] = set()
        self.ends: Counter[str] = Counter()
        self.generated: Counter[str] = Counter()

    async def _empty(self) -> None:
        await self.store.flushall()

    def teardown(self) -> None:
        try:
            self.look()
        finally:
            self._run(self.store.aclose())
            self._runner.close()

    def both(self, call: Callable[[Queue], Awaitable[Any]]) -> Any:
        """The answer that both give."""

        async def ask(queue: Queue) -> object:
            try:
                return await call(queue)
            except QueueError as error:
                return type(error), vars(error)

        async def ask_both() -> tuple[object, object]:
            return await ask(self.memory), await ask(self.stored)

        expected, got = self._run(ask_both())
        assert got == expected
        return got

    def some_jobs(self, rng: Random) -> list[str]:
        return rng.sample(self.job_ids[-16:], min(len(self.job_ids), rng.randint(0, 4)))

    @rule(rng=randoms)
    def put(self, rng: Random) -> None:
        """Mostly a new job; sometimes one that was put before."""
        again = self.job_ids and rng.random() < 0.1
        job_id = rng.choice(self.job_ids) if again else f"f{next(self.numbers)}"
        sent = job(
            job_id,
            rng.choice(TENANTS),
            rng.choice(list(LaneName)),
            prompt=tuple(range(rng.choice([1, 10, 10, 30, 300]))),
            n=rng.choice([1, 1, 1, 2, 3]),
            max_tokens=rng.choice([5, 10, 700]),
            gateway_id=rng.choice(GATEWAYS),
            weight=rng.choice([1.0, 1.0, 0.3, 7.0]),
            guaranteed=rng.random() < 0.3,
            claim_ms=rng.choice([0.0, 0.5, 40.0, 300.001, 900.0]),
            pace_ms=rng.choice([0.0, 0.0, 3.0]),
            work_ms=rng.choice([0.0, 30.0, 333.3, 5_000.0]),
            token_ms=rng.choice([0.0, 0.3, 20.0]),
            follows=rng.random() < 0.2,
            prompt_print=rng.choice(["", "print"]),
            ttft_ms=rng.choice([1.0, 300.0, 1_000.5, 5_000.0]),
            hard_ttft_ms=rng.choice([None, None, None, 2_000.0]),
            deadline_ms=rng.choice([None, None, None, 700.0, 8_000.5]),
        )
        limit = rng.choice([None, None, 0, 3, 6])
        waited_ms = rng.choice([0, 0, 0, 300, 7_000])
        generated = rng.choice([0, 0, 0, 0, 1, 40])
        first, more = rng.choice(BEGINNINGS), rng.choice(BEGINNINGS)
        prefixes = rng.choice([b"", first, first + more])
        answer = self.both(
            lambda queue: queue.put(
                sent, tenant_limit=limit, waited_ms=waited_ms, prefixes=prefixes, generated=generated
            )
        )
        if not again and isinstance(answer, Put):
            self.job_ids.append(job_id)
            self.followers |= {job_id} if sent.follows else set()

    @rule(rng=randoms)
    def take(self, rng: Random) -> None:
        sequences: dict[str, int] = {lane: rng.choice([0, 1, 1, 2, 6]) for lane in LaneName}
        kv_tokens: dict[str, int] = {lane: rng.choice([15, 60, 1_000]) for lane in LaneName}
        worker, prefill_ms = rng.choice(WORKERS), rng.choice([0.0, 0.3, 20.0])
        capacity = Capacity(
            sequences,
            kv_tokens,
            prefill_ms,
            max_sequences=rng.choice([0, 2, 6]),
            pool_tokens=rng.choice([0, 100, 1_000]),
            yielding={lane: yielding(rng) for lane in LaneName if rng.random() < 0.6},
        )
        called, unreached = self.some_jobs(rng), rng.sample(GATEWAYS, rng.choice([0, 0, 1, 2]))
        items, serial = self._items(worker, rng) if rng.random() < 0.5 else [], str(next(self.numbers))
        turn = self.both(
            lambda queue: queue.turn(worker, capacity, items, called=called, unreached=unreached, serial=serial)
        )
        self.ended_by_worker |= {item.job_id for item in items if item.ends} - turn.refused
        leases = turn.leases
        if items or leases:  # else a repeat changes nothing but who is called
            again = self._run(
                self.stored.turn(worker, capacity, items, called=called, unreached=unreached, serial=serial)
            )
            assert again == turn
        for lease in leases:
            assert lease.job.gateway_id not in unreached
            assert capacity.holds(lease.job.n, lease.job.max_total_tokens)
            assert lease.epoch > self.epochs[lease.job.job_id]
            self.epochs[lease.job.job_id] = lease.epoch
        self.leases += leases

    def _items(self, worker: str, rng: Random) -> list[Progress]:
        leases = {lease.job.job_id: lease for lease in self.leases}  # the last one of each job
        records = {job_id: record for job_id in leases if (record := self._known(job_id))}
        held = [
            job_id
            for job_id, record in records.items()
            if record.worker_id == worker and (record.state is JobState.LEASED or rng.random() < 0.1)
        ]
        return [_progress(leases[job_id], records[job_id], rng) for job_id in held[-rng.choice([1, 3, 7]) :]]

    @rule(rng=randoms)
    def report(self, rng: Random) -> None:
        """Mostly what the holder of some leases would report next; sometimes late, for another worker, or again."""
        if not self.leases:
            return
        if self.reports and rng.random() < 0.2:
            self._report(*rng.choice(self.reports))
            return
        leases = rng.sample(self.leases[-8:], min(len(self.leases), rng.choice([1, 1, 2, 5])))
        records = {lease.job.job_id: self._known(lease.job.job_id) for lease in leases}
        holder = rng.choice([record.worker_id for record in records.values() if record is not None] or WORKERS)
        items = [_progress(lease, records[lease.job.job_id], rng) for lease in leases]
        items += [Progress("ghost", 1, 7, 7.0)] if rng.random() < 0.2 else []
        serial = str(next(self.numbers))
        worker = holder if holder and rng.random() < 0.9 else rng.choice(WORKERS)
        for _ in range(rng.choice([1, 1, 2])):
            self._report(worker, items, serial)
        self.reports = [*self.reports[-3:], (worker, items, serial)]

    def _report(self, worker: str, items: list[Progress], serial: str) -> None:
        names = [item.job_id for item in items]
        before = {name for name in names if (record := self._known(name)) and record.state is JobState.LEASED}
        refused = self.both(lambda queue: queue.report(worker, items, serial=serial))
        after = {name for name in before if (record := self._known(name)) and record.state is JobState.ENDED}
        assert refused <= set(names)
        assert after <= {item.job_id for item in items if item.ends}
        self.ended_by_worker |= after

    def _known(self, job_id: str) -> JobRecord | None:
        return self._run(self.memory.record(job_id))

    @rule(rng=randoms)
    def renew(self, rng: Random) -> None:
        worker, known = rng.choice(WORKERS), rng.choice([None, self.some_jobs(rng)])
        self.both(lambda queue: queue.renew(worker, known))

    @rule(rng=randoms)
    def release(self, rng: Random) -> None:
        worker, given = rng.choice(WORKERS), self.some_jobs(rng)
        self.both(lambda queue: queue.release(worker, given))

    @rule(rng=randoms)
    def retire(self, rng: Random) -> None:
        worker = rng.choice(WORKERS)
        self.both(lambda queue: queue.retire(worker))

    @rule(rng=randoms)
    def rouse(self, rng: Random) -> None:
        self.clock.advance(rng.choice([0, 1, 150, 1_000]))
        given = self.some_jobs(rng)
        self.both(lambda queue: queue.rouse(given))

    @rule(rng=randoms)
    def cancel(self, rng: Random) -> None:
        for job_id in self.some_jobs(rng)[:1]:
            self.both(lambda queue: queue.cancel(job_id))  # noqa: B023

    @rule(rng=randoms)
    def exchange_reports(self, rng: Random) -> None:
        gateway, said = rng.choice(GATEWAYS), rng.choice([b"", b"one", b"two"])
        refused_us = {lane: rng.choice([1, 250_000]) for lane in LaneName if rng.random() < 0.2}
        self.both(lambda queue: queue.exchange_reports(gateway, said, refused_us))

    @rule(rng=randoms)
    def forget(self, rng: Random) -> None:
        given = self.some_jobs(rng)
        self.both(lambda queue: queue.forget(given))
        for job_id in given:
            if self.both(lambda queue: queue.record(job_id)) is None:  # noqa: B023
                self.job_ids.remove(job_id)
                self.epochs.pop(job_id, None)
                self.leases = [lease for lease in self.leases if lease.job.job_id != job_id]

    @rule(rng=randoms)
    def orphan(self, rng: Random) -> None:
        """Time without a worker, and what is done then; sometimes too early."""
        for _ in range(rng.choice([1, 4])):
            self.clock.advance(400)
            for gateway in GATEWAYS:
                self.both(lambda queue: queue.gateway_alive(gateway))  # noqa: B023
            self.both(lambda queue: queue.reclaim())
        grace_ms = rng.choice([1, 1_000, 3_000])
        self.both(lambda queue: queue.orphan(grace_ms))
        for job_id in self.some_jobs(rng):
            if self.both(lambda queue: queue.withdraw(job_id, grace_ms)):  # noqa: B023
                self.job_ids.remove(job_id)
                self.epochs.pop(job_id, None)
                self.leases = [lease for lease in self.leases if lease.job.job_id != job_id]

    @rule(rng=randoms)
    def live_on(self, rng: Random) -> None:
        """Heartbeats and reclaims, for up to two leases, with some workers or gateways silent; or nothing at all."""
        silent = set(rng.sample(WORKERS + GATEWAYS, rng.choice([0, 0, 1, 2])))
        if rng.random() < 0.1:
            self.clock.advance(rng.choice([1, 600, 5_000]))
        for _ in range(rng.randint(0, 5)):
            self.clock.advance(rng.choice([1, 400, 499]))
            for worker in WORKERS:
                if worker not in silent:
                    self.both(lambda queue: queue.renew(worker))  # noqa: B023
            for gateway in GATEWAYS:
                if gateway not in silent:
                    self.both(lambda queue: queue.gateway_alive(gateway))  # noqa: B023
            self.both(lambda queue: queue.reclaim())

    @rule(seed=st.integers(0, 2**32 - 1))
    def burst(self, seed: int) -> None:
        rng = Random(seed)
        often = [self.put] * 8 + [self.take] * 5 + [self.report] * 5 + [self.live_on] * 2
        for _ in range(30):
            seldom = [
                self.renew,
                self.release,
                self.retire,
                self.rouse,
                self.cancel,
                self.exchange_reports,
                self.forget,
                self.orphan,
            ]
            rng.choice([*often, *seldom])(Random(rng.random()))

    @rule()
    def look(self) -> None:
        """All that can be read is the same, a job has one place, and one end."""
        for gateway in GATEWAYS:
            for event in self.both(lambda queue: queue.events(gateway)):  # noqa: B023
                self.ends[event.job_id] += 1
        for worker in WORKERS:
            self.both(lambda queue: queue.controls(worker))  # noqa: B023
            self.leases += self.both(lambda queue: queue.given(worker))  # noqa: B023
            self.both(lambda queue: queue.calls(worker))  # noqa: B023
        waiting: set[str] = set()
        for job_id in self.job_ids:
            record, _, position = self.both(
                lambda queue: asyncio.gather(
                    queue.record(job_id),  # noqa: B023
                    queue.published(job_id),  # noqa: B023
                    queue.position(job_id),  # noqa: B023
                )
            )
            assert record.generated >= self.generated[job_id]
            self.generated[job_id] = record.generated
            assert (position is not None) == (record.state is JobState.QUEUED)
            assert self.ends[job_id] + (job_id in self.ended_by_worker) == (record.state is JobState.ENDED)
            waiting |= {job_id} if position is not None else set()
        requests = sum(self.both(lambda queue: queue.waiting(tenant)) for tenant in TENANTS)  # noqa: B023
        assert len(waiting - self.followers) == requests
        assert len(waiting) == sum(depth.queued for depth in self.both(lambda queue: queue.depths()).values())


def _progress(lease: Lease, record: JobRecord | None, rng: Random) -> Progress:
    known = record.generated if record else 0
    keeps = rng.random() < 0.3
    return Progress(
        job_id=lease.job.job_id,
        epoch=lease.epoch + rng.choice([0] * 14 + [-1, 1]),
        generated=max(0, known + rng.choice([0, 1, 2, 30, -1])),
        cost=rng.choice([0.0, 2.0, 0.1, 500.3, 3_000.0]),
        ends=rng.choice([None, None, None, Outcome.FINISHED, Outcome.CANCELLED]),
        token_ids=tuple([tuple(range(rng.choice([0, 1, 5]))) for _ in range(lease.job.n)]) if keeps else (),
    )


@pytest.mark.parametrize("server", ["valkey", "redis_server"])
def test_memory_and_store_answer_alike(
    server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queue_types, lane_places, lane_order):  # limits that three tenants reach
        monkeypatch.setattr(module, "TENANTS_PER_TAKE", 2, raising=False)
        monkeypatch.setattr(module, "OLDEST_PER_TAKE", 1, raising=False)
        monkeypatch.setattr(module, "LOOKS_PER_TAKE", 3, raising=False)
    monkeypatch.setattr(bounds, "PER_CALL", 3)
    monkeypatch.setattr(bounds, "JOBS_PER_CALL", 3)

    class OnServer(Twins):
        url = request.getfixturevalue(server).url

    run_state_machine_as_test(
        OnServer,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
