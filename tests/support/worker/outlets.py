"""Outlets between a scripted engine, a store of a few lines, and a gateway's end over links in memory."""

import asyncio
import copy
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import redis

from fairlane.scheduler.links.dialer import GatewayPeer
from fairlane.scheduler.protocol.media import MediaKind
from fairlane.scheduler.protocol.messages import (
    Event,
    Finished,
    FinishReason,
    Job,
    Lease,
    Outcome,
    Paused,
    PositionLogprobs,
    TokenDelta,
)
from fairlane.scheduler.queue.types import Progress
from fairlane.store.retry import StoreLink
from fairlane.worker.leases import HeldLeases
from fairlane.worker.outlet import Outlet
from fairlane.worker.reports import Publication
from fairlane.worker.shards.store_reports import StoreCalls
from tests.support.worker.gateway_end import GatewayEnd
from tests.support.worker.memory_link import MemoryLink

PATIENCE_S = 3.0
MOST_ROUNDS = 400


def script(job: Job, choice: int) -> list[int]:
    """What a choice generates; each ends one token before the one in front of it."""
    return [100 * choice + index for index in range(max(1, job.max_tokens - choice))]


def logprob(token: int) -> PositionLogprobs:
    return PositionLogprobs(-float(token), ((token, -float(token)),))


@dataclass
class Record:
    job: Job
    state: str = "queued"
    worker: str = ""
    epoch: int = 0
    generated: int = 0
    cancelled: bool = False
    outcome: Outcome | None = None
    cost: float = 0.0
    output: tuple[tuple[int, ...], ...] = ()


@dataclass
class MiniStore:
    """The queue's rules for leases. While `away`, calls fail; `loses_answers` fails them after they had effect."""

    gateway: GatewayEnd
    records: dict[str, Record] = field(default_factory=dict)
    away: bool = False
    loses_answers: int = 0
    reports: list[tuple[str, tuple[Progress, ...], str]] = field(default_factory=list)
    """Each call that arrived: worker, items, serial."""
    cancels: list[tuple[str, str]] = field(default_factory=list)
    """Workers and jobs that they were asked to stop."""
    _last: dict[str, tuple[str, set[str]]] = field(default_factory=dict)

    def put(self, job: Job, *, generated: int = 0) -> None:
        self.gateway.expect(job)
        self.records[job.job_id] = Record(job, generated=generated)

    def take(self, worker: str) -> list[Lease]:
        taken = []
        for record in self.records.values():
            if record.state == "queued":
                record.state, record.worker, record.epoch = "leased", worker, record.epoch + 1
                started = record.epoch > 1 or record.generated > 0
                taken.append(Lease(job=record.job, epoch=record.epoch, arrived_ms_ago=0.0, started=started))
        return taken

    async def report(self, worker: str, items: Sequence[Progress], serial: str) -> set[str]:
        self._reach()
        self.reports.append((worker, tuple(items), serial))
        if self._last.get(worker, ("", set()))[0] != serial:
            refused = {item.job_id for item in items if not self._accept(worker, item)}
            self._last[worker] = serial, refused
        self._answer()
        return self._last[worker][1]

    async def release(self, worker: str, job_ids: Iterable[str]) -> None:
        self._reach()
        for job_id in job_ids:
            record = self.records[job_id]
            if record.state == "leased" and record.worker == worker:
                self._give_back(record)
        self._answer()

    def renew(self, worker: str, holding: Iterable[str]) -> None:
        """Return jobs that the worker does not know."""
        for record in self.records.values():
            if record.state == "leased" and record.worker == worker and record.job.job_id not in holding:
                self._give_back(record)

    def expire(self, worker: str) -> None:
        """Take a worker's jobs away, as when its lease expires."""
        self.renew(worker, ())

    def cancel(self, job_id: str) -> None:
        record = self.records[job_id]
        if record.state == "queued":
            self._end(record, Outcome.CANCELLED)
        elif record.state == "leased" and not record.cancelled:
            record.cancelled = True
            self.cancels.append((record.worker, job_id))

    def saved(self) -> dict[str, Record]:
        return copy.deepcopy(self.records)

    def forget(self, saved: dict[str, Record]) -> None:
        """Lose every write since `saved`, but no job."""
        self.records.update(copy.deepcopy(saved))

    def _accept(self, worker: str, item: Progress) -> bool:
        record = self.records[item.job_id]
        if (record.state, record.worker, record.epoch) != ("leased", worker, item.epoch):
            return False
        record.generated = max(record.generated, item.generated)
        record.cost += item.cost
        record.output = item.token_ids or record.output
        if item.ends is not None:
            record.state, record.outcome = "ended", item.ends
        return True

    def _give_back(self, record: Record) -> None:
        if record.cancelled:
            self._end(record, Outcome.CANCELLED)
        else:
            record.state, record.worker, record.epoch = "queued", "", record.epoch + 1

    def _end(self, record: Record, outcome: Outcome) -> None:
        record.state, record.outcome = "ended", outcome
        self.gateway.accept(Finished(job_id=record.job.job_id, epoch=record.epoch, outcome=outcome))

    def _reach(self) -> None:
        if self.away:
            raise redis.ConnectionError("away")

    def _answer(self) -> None:
        if self.loses_answers:
            self.loses_answers -= 1
            raise redis.ConnectionError("the answer was lost")


@dataclass
class Run:
    """A job in the scripted engine."""

    lease: Lease
    made: list[list[int]]
    granted: int

    def is_done(self) -> bool:
        return all(len(made) >= len(script(self.lease.job, choice)) for choice, made in enumerate(self.made))


@dataclass
class MediaEngine:
    """The part of an engine that takes media. It counts a token for each byte, and cannot read some."""

    media: dict[bytes, bytes] = field(default_factory=dict)
    unreadable: set[bytes] = field(default_factory=set)
    fails: bool = False

    def measure(self, kind: MediaKind, data: bytes) -> Future[int]:
        found: Future[int] = Future()
        if self.fails:
            found.set_exception(RuntimeError("away"))
        else:
            found.set_result(0 if data in self.unreadable else len(data))
        return found

    def watch(self, on_presence: Callable[[bool], object], on_change: Callable[[str], object]) -> None: ...

    def close(self) -> None: ...


class OutletWorker:
    """An outlet and its owner. The engine's reports and the link's writes wait until a test moves them on."""

    def __init__(self, name: str, store: MiniStore, gateway: GatewayEnd) -> None:
        self.name, self.store, self.gateway = name, store, gateway
        self.runs: dict[str, Run] = {}
        self.held = HeldLeases()
        self.dropped: list[str] = []
        self.started: Counter[str] = Counter()
        self.reported: deque[Publication] = deque()
        self.is_up = True
        self.reached = 0
        self.engine = MediaEngine()
        self._link: MemoryLink | None = None
        self._serials = iter(range(10**6))
        self.outlet = Outlet(
            self,
            dial=self._dial,
            stores=[
                StoreCalls(
                    partial(store.report, name), partial(store.release, name), lambda: f"{name}:{next(self._serials)}"
                )
            ],
            link=StoreLink(5.0),
            on_reached=self._reach,
            remote=self.engine,
            patience_s=PATIENCE_S,
        )
        self._task = asyncio.get_running_loop().create_task(self.outlet.run())

    @property
    def link(self) -> MemoryLink:
        assert self._link is not None, "no job was taken yet"
        return self._link

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.outlet.aclose()

    def _reach(self) -> None:
        self.reached += 1

    def _dial(self, _gateway_id: str, _address: str, peer: GatewayPeer) -> MemoryLink:
        self._link = MemoryLink(self.gateway, peer, self.name, is_up=self.is_up)
        return self._link

    # worker.outlet.JobOwner.

    def start_job(self, lease: Lease, *, again: bool) -> None:
        job = lease.job
        self.started[job.job_id] += 1
        assert self.engine.media.keys() >= {span.digest for span in job.media}, "a job started without its media"
        made = [list(ids) for ids in lease.generated] or [[] for _ in range(job.n)]
        assert again == (job.job_id in self.runs) or again, "a job was started twice"
        self.runs[job.job_id] = Run(lease, made, job.granted_until)

    def grant_job(self, job_id: str, granted_until: int) -> None:
        if job_id in self.runs:
            self.runs[job_id].granted = max(granted_until, self.runs[job_id].granted)

    def cancel_job(self, job_id: str) -> None:
        run = self.runs.pop(job_id, None)
        if run is not None:
            self._end(run, (), Outcome.CANCELLED)

    def drop_jobs(self, jobs: Sequence[tuple[str, int]], why: str) -> None:
        for job_id, epoch in jobs:
            self.dropped.append(f"{job_id}: {why}")
            if job_id in self.runs and self.runs[job_id].lease.epoch == epoch:
                del self.runs[job_id]

    def forget_job(self, job_id: str, epoch: int) -> None:
        self.held.remove(job_id, epoch)

    # What a test moves on.

    async def take(self) -> None:
        """Take every waiting job; as a worker's server does, release those that it holds under this epoch already."""
        leases = self.store.take(self.name)
        known = self.held.known(leases)
        if known:
            ids = [lease.job.job_id for lease in known]
            await self.store.release(self.name, ids)
            lost = self.held.epochs(ids)
            self.drop_jobs(lost, "leased again")
            self.outlet.drop(lost)
        fresh = [lease for lease in leases if lease not in known]
        self.held.took(fresh)
        self.outlet.took(fresh)

    def step(self, tokens: int = 1) -> None:
        """Compute tokens of each choice. The report waits for `turn`."""
        for _ in range(tokens):
            for run in list(self.runs.values()):
                self._step(run)

    def turn(self) -> None:
        """Let the loop learn the engine's oldest report."""
        if self.reported:
            self.outlet.put([self.reported.popleft()])

    def turns(self) -> None:
        while self.reported:
            self.turn()

    def work(self, tokens: int = 1) -> None:
        """Compute tokens, and let everything arrive."""
        for _ in range(tokens):
            self.step()
            self.turns()
            if self._link is not None:
                self._link.deliver()

    def controls(self) -> None:
        """Read what the store asks."""
        mine = [job_id for worker, job_id in self.store.cancels if worker == self.name]
        self.store.cancels = [each for each in self.store.cancels if each[0] != self.name]
        for job_id in mine:
            if job_id in self.held.ids() and self.outlet.cancel(job_id):
                self.cancel_job(job_id)

    async def hand_back(self) -> None:
        """Return every unfinished job to the queue, as on a drain or an expired lease."""
        self.outlet.give_back(self.outlet.waiting())
        self.turns()
        held, self.runs = list(self.runs), {}
        self.outlet.give_back(held)

    def _step(self, run: Run) -> None:
        job, events = run.lease.job, list[Event]()
        if run.is_done():  # its gateway had every token
            del self.runs[job.job_id]
            self._end(run, (), Outcome.FINISHED)
            return
        for choice, made in enumerate(run.made):
            whole = script(job, choice)
            if len(made) >= min(len(whole), run.granted):
                continue
            token = whole[len(made)]
            made.append(token)
            finish: FinishReason | None = None
            if len(made) == len(whole):
                finish = "length" if len(whole) == job.max_tokens else "stop"
            delta = TokenDelta(
                job_id=job.job_id,
                epoch=run.lease.epoch,
                choice=choice,
                first_index=len(made) - 1,
                token_ids=(token,),
                logprobs=() if job.sampling.logprobs is None else (logprob(token),),
                finish_reason=finish,
                worker_id=self.name if len(made) == 1 else "",
            )
            events.append(delta)
            if finish is None and len(made) == run.granted:
                events.append(Paused(job_id=job.job_id, choice=choice))
        if run.is_done():
            del self.runs[job.job_id]
            self._end(run, events, Outcome.FINISHED)
        elif events:
            self.reported.append(Publication(run.lease, tuple(events), cost=float(len(events))))

    def _end(self, run: Run, events: Sequence[Event], outcome: Outcome, error: str = "") -> None:
        end = Finished(
            job_id=run.lease.job.job_id, epoch=run.lease.epoch, outcome=outcome, error=error, worker_id=self.name
        )
        self.reported.append(Publication(run.lease, (*events, end), cost=float(len(events)), ends=outcome))

    def fail(self, job_id: str, error: str) -> None:
        """End a job as failed in the engine."""
        self._end(self.runs.pop(job_id), (), Outcome.FAILED, error)


async def quiet() -> None:
    """Let every task run until it waits. In virtual time."""
    await asyncio.sleep(0.001)


@dataclass
class World:
    """A gateway, a store and workers. Create it in virtual time."""

    workers: int = 2
    gateway: GatewayEnd = field(default_factory=GatewayEnd)

    def __post_init__(self) -> None:
        self.store = MiniStore(self.gateway)
        self.all = [OutletWorker(f"w{number}", self.store, self.gateway) for number in range(self.workers)]

    async def aclose(self) -> None:
        for worker in self.all:
            await worker.aclose()

    def check(self) -> None:
        """Each accepted token is the next one of an undisturbed run."""
        if self.gateway.fault is not None:
            raise self.gateway.fault
        for job_id, record in self.store.records.items():
            for choice in range(record.job.n):
                received, whole = self.gateway.tokens[job_id, choice], script(record.job, choice)
                assert received == whole[: len(received)], f"choice {choice} of {job_id}"
                if record.job.sampling.logprobs is not None:
                    assert self.gateway.logprobs[job_id, choice] == [logprob(token) for token in received]

    async def finish(self) -> None:
        """Remove every fault, and let everything end. Then nothing is left anywhere."""
        self.store.away, self.store.loses_answers = False, 0
        for job_id, live in self.gateway.jobs.items():
            self.gateway.grant(job_id, self.store.records[job_id].job.max_tokens)
            assert live.granted
        for worker in self.all:
            worker.is_up = True
            if worker._link is not None:
                worker.link.switch(is_up=True)
        for _ in range(MOST_ROUNDS):
            await asyncio.sleep(0.2)  # longer than a retry's delay now and then
            for worker in self.all:
                await worker.take()
                worker.controls()
                worker.work()
            for worker in self.all:
                self.store.renew(worker.name, worker.held.ids())
            self.check()
            if self._is_over:
                break
        self._check_end()

    @property
    def _is_over(self) -> bool:
        ended = all(record.state == "ended" for record in self.store.records.values())
        return ended and not any(worker.outlet._streams or worker.runs or worker.reported for worker in self.all)

    def _check_end(self) -> None:
        states = {job_id: record.state for job_id, record in self.store.records.items()}
        assert self._is_over, (states, [(worker.runs, worker.outlet._streams) for worker in self.all])
        assert self.gateway.ends.keys() == self.gateway.jobs.keys()
        for job_id, end in self.gateway.ends.items():
            record = self.store.records[job_id]
            assert end.outcome in (Outcome.FINISHED, Outcome.CANCELLED)
            if end.outcome is Outcome.FINISHED:
                for choice in range(record.job.n):
                    assert self.gateway.tokens[job_id, choice] == script(record.job, choice)
        for worker in self.all:
            assert worker.held.ids() == []
            assert not any(gateway.streams for gateway in worker.outlet._gateways.values())
            assert worker.engine.media == {}
        assert not any(self.gateway.streams._streams.values())
