"""Reports of the engine thread to the event loop, after each batch of commands and each step."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fairlane.scheduler.planner.steps import Capacity, Ended
from fairlane.scheduler.protocol.messages import Event, Finished, JobSteps, Lease, Outcome, TokenDelta
from fairlane.worker.accounts import StepAccounts
from fairlane.worker.engine.engine import StepReport


class Publication(NamedTuple):
    """One job's part of one turn."""

    # As the engine was given it: a job that begins anew has another one under the same epoch.
    lease: Lease
    events: tuple[Event, ...] = ()
    # Weighted tokens computed for it.
    cost: float = 0.0
    ends: Outcome | None = None

    @property
    def job_id(self) -> str:
        return self.lease.job.job_id

    @property
    def epoch(self) -> int:
        return self.lease.epoch


class LaneTokens(NamedTuple):
    """Tokens of one lane in one step."""

    # Tokens of rows that compute more than one, including recomputed ones.
    prefill: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The engine's load: sequences by lane, and the free blocks of both pools."""

    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    preempted: dict[str, int] = field(default_factory=dict)
    blocks_free: int = 0
    blocks_cached: int = 0
    host_slots_free: int = 0


class Dropped(NamedTuple):
    """A job that left without ending here; nothing is sent for it."""

    job_id: str


# A command's effect on a job.
JobChange = Lease | Ended | Dropped


@dataclass(slots=True)
class Report:
    """The engine's state after a batch of commands or a step. `ReportBuilder` completes it."""

    applied: int
    jobs: int
    capacity: Capacity
    load: WorkerLoad
    # In order; all of them precede the step.
    changes: Sequence[JobChange] = ()
    step: StepReport | None = None
    # Begin of the step, or time of the commands, on the engine thread's clock.
    began_ms: float = 0.0
    # The idle engine audited its KV blocks, and all were accounted for.
    audited: bool = False
    publications: list[Publication] = field(default_factory=list)
    tokens: Mapping[str, LaneTokens] = field(default_factory=dict)
    # Jobs whose first row under their lease was in the step, with their waiting time in milliseconds.
    begun: Mapping[str, float] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        return self.step is not None and not self.step.plan.is_empty


class EngineObserver:
    """Observes the worker on the event loop: metrics, traces, the heartbeat."""

    def took(self, leases: Iterable[Lease]) -> None: ...

    def turned(self, report: Report) -> None: ...

    def lost(self, job_ids: Iterable[str]) -> None:
        """Called when jobs left without ending here: refused by the store, or returned to the queue."""


class ReportBuilder:
    """Adds the publications to the reports, in the order of the turns, and tracks the leases in the engine.

    Used only on the event loop, while the engine computes the next step."""

    def __init__(self, worker_id: str, accounts: StepAccounts | None = None) -> None:
        """`accounts` is None if an external engine computes, whose consumption is not measured."""
        self._worker_id = worker_id
        self._accounts = accounts
        # End of the current turn on the engine thread's clock, at which ended jobs are accounted.
        self._now_ms = 0.0
        self._leases: dict[str, Lease] = {}
        # Jobs without a row so far, with their arrival time on the engine thread's clock.
        self._arrived_ms: dict[str, float] = {}
        # Jobs with a row but no token so far: their waiting time, and when they began, on that clock.
        self._begun: dict[str, tuple[float, float]] = {}

    def record_arrival(self, lease: Lease, now_ms: float) -> None:
        self._arrived_ms[lease.job.job_id] = now_ms - lease.arrived_ms_ago

    def complete(self, report: Report) -> None:
        publications = report.publications
        self._now_ms = report.began_ms
        for change in report.changes:
            self._change(change, publications)
        step = report.step
        if step is None:
            return
        if self._arrived_ms:
            report.begun = self._begin(step, report.began_ms)
        report.tokens = self._count(step)  # before ended jobs are removed
        took_ms = step.result.run_ms + step.result.copy_ms
        self._now_ms += took_ms
        if self._accounts is not None:
            self._accounts.add(step.plan, took_ms, report.began_ms)
        self._add(step.events, step.outcome.charges, step.outcome.ended, publications)

    def _begin(self, step: StepReport, began_ms: float) -> dict[str, float]:
        begun = {row.seq.job_id for row in step.plan.rows} & self._arrived_ms.keys()
        waited = {job_id: began_ms - self._arrived_ms.pop(job_id) for job_id in begun}
        self._begun |= {job_id: (waited_ms, began_ms) for job_id, waited_ms in waited.items()}
        return waited

    def _change(self, change: JobChange, publications: list[Publication]) -> None:
        match change:
            case Lease():
                self._leases[change.job.job_id] = change
            case Ended():
                self._add((), {}, (change,), publications)
            case Dropped():
                self._leave(change.job_id)

    def _count(self, step: StepReport) -> dict[str, LaneTokens]:
        leases, prefill = self._leases, Counter[str]()
        for row in step.plan.rows:
            if len(row.token_ids) > 1:
                prefill[leases[row.seq.job_id].job.lane] += len(row.token_ids)
        output: Counter[str] = Counter([leases[produced.seq.job_id].job.lane for produced in step.outcome.produced])
        return {lane: LaneTokens(prefill[lane], output[lane]) for lane in prefill.keys() | output.keys()}

    def _add(
        self,
        events: Iterable[Event],
        charges: Mapping[str, float],
        ended: Iterable[Ended],
        publications: list[Publication],
    ) -> None:
        by_job: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_job[event.job_id].append(event)
        ends = {end.job_id: end for end in ended}
        for job_id in dict.fromkeys([*by_job, *charges, *ends]):
            lease = self._leases.get(job_id)
            if lease is not None:
                cost = charges.get(job_id, 0.0)
                publications.append(self._publication(lease, by_job[job_id], cost, ends.get(job_id)))
        for job_id in ends:
            self._leave(job_id)

    def _leave(self, job_id: str) -> None:
        for known in (self._leases, self._arrived_ms, self._begun):
            known.pop(job_id, None)
        if self._accounts is not None:
            self._accounts.drop(job_id)

    def _publication(self, lease: Lease, events: list[Event], cost: float, end: Ended | None) -> Publication:
        if lease.job.job_id in self._begun:
            self._add_timing(lease.job.job_id, events)
        published = (*events,) if end is None else (*events, self._finished(lease, end))
        return Publication(lease, published, cost, None if end is None else end.outcome)

    def _add_timing(self, job_id: str, events: list[Event]) -> None:
        # The job's first token reports its waiting time, its prefill time and the worker's id.
        for index, event in enumerate(events):
            if isinstance(event, TokenDelta):
                waited_ms, began_ms = self._begun.pop(job_id)
                events[index] = msgspec.structs.replace(
                    event, queued_ms=waited_ms, prefill_ms=self._now_ms - began_ms, worker_id=self._worker_id
                )
                return

    def _finished(self, lease: Lease, end: Ended) -> Finished:
        return Finished(
            job_id=lease.job.job_id,
            epoch=lease.epoch,
            outcome=end.outcome,
            error=end.error,
            cached_tokens=end.cached_tokens,
            preemptions=end.preemptions,
            worker_id=self._worker_id,
            steps=self._steps_of(lease, end),
        )

    def _steps_of(self, lease: Lease, end: Ended) -> JobSteps:
        gpu_us, kv_block_ms = (0, 0) if self._accounts is None else self._accounts.close(end.job_id, self._now_ms)
        return msgspec.structs.replace(
            end.steps or JobSteps(),
            taken_ms=None if any(lease.generated) else lease.arrived_ms_ago,
            queued_ms=self._begun.get(end.job_id, (None, 0.0))[0],
            gpu_us=gpu_us,
            kv_block_ms=kv_block_ms,
        )
