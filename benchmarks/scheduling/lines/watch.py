"""A small worker under watch: somebody cancels now and then, and whatever must never happen is counted."""

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.kv.blocks import IntegrityError
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Capacity, Ended, StepOutcome, StepPlan, StepResult
from fairlane.scheduler.protocol.lanes import LATENCY, THROUGHPUT, LaneName
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.simulation.simulate import IDLE_MS, SimulatedStep
from fairlane.scheduler.simulation.workload import Arrival, Record

LANES = {
    LaneName.LATENCY: replace(LATENCY, max_wait_ms=4_000.0),
    LaneName.THROUGHPUT: replace(THROUGHPUT, max_wait_ms=12_000.0, share_floor=0.2),
}
AUDIT_EVERY = 5
"""Steps between two comparisons of blocks and states."""
CANCELLED = 0.01
"""Part of the steps in which somebody cancels."""


class Worker(NamedTuple):
    """A small one, of a size drawn at random."""

    block_size: int
    blocks: int
    host_slots: int
    max_sequences: int
    max_step_tokens: int
    window: float

    def planner(self) -> Planner:
        """An idle one."""
        return Planner(lanes=LANES, costs=CostModel(), **self._asdict())


@dataclass
class Watched:
    """The planner under watch: somebody cancels now and then, and what must never happen is counted."""

    planner: Planner
    worker: Worker
    draws: random.Random
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    steps: int = 0
    over_budget: int = 0
    integrity: int = 0
    _cancelled: list[Ended] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        """A further step would do something."""
        return bool(self.planner.has_work or self._cancelled)

    def add(self, lease: Lease, now_ms: float) -> None:
        """Take up a job."""
        self.planner.add(lease, now_ms)

    def plan(self, now_ms: float) -> StepPlan:
        """Decide the next step."""
        self._maybe_cancel()
        plan = self.planner.plan(now_ms)
        self.steps += 1
        self.digest.update(repr([tuple(row) for row in plan.rows]).encode())
        tokens = sum(len(row.token_ids) for row in plan.rows)
        sequences = {row.seq for row in plan.rows}
        kept = len(sequences) == len(plan.rows) <= self.worker.max_sequences and tokens <= self.worker.max_step_tokens
        self.over_budget += not kept
        return plan

    def apply(self, result: StepResult, now_ms: float) -> StepOutcome:
        """Take in what came out of it."""
        self._maybe_cancel()
        outcome = self.planner.apply(result, now_ms)
        if self.steps % AUDIT_EVERY == 0:
            self.audit()
        return replace(outcome, ended=outcome.ended + self._take_cancelled())

    def collect(self) -> StepOutcome:
        """What ended without a step."""
        return StepOutcome(ended=self.planner.collect().ended + self._take_cancelled())

    def capacity(self) -> Capacity:
        """What could be started in the next step."""
        return self.planner.capacity()

    def audit(self) -> None:
        """Compare blocks and states; without work all must be free."""
        free = self.planner.blocks_free, self.planner.host_slots_free
        try:
            self.planner.check_integrity()
            self.integrity += not self.planner.has_work and free != (self.worker.blocks, self.worker.host_slots)
        except IntegrityError:
            self.integrity += 1

    def _maybe_cancel(self) -> None:
        job_ids = self.planner.job_ids()
        if job_ids and self.draws.random() < CANCELLED:
            ended = self.planner.cancel(self.draws.choice(job_ids))
            self._cancelled += [ended] if ended else []

    def _take_cancelled(self) -> tuple[Ended, ...]:
        cancelled, self._cancelled = tuple(self._cancelled), []
        return cancelled


@dataclass
class Waits:
    """Watches for requests that wait, steps that bring nothing, and ends."""

    begun_ms: dict[str, float] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    longest_step_ms: float = 0.0
    standstill: int = 0
    """Steps since somebody gained a token or ended."""
    standstills: list[int] = field(default_factory=list)
    longest_pause_ms: float = 0.0
    _ran_ms: dict[str, float] = field(default_factory=dict)

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """A request came, and was let in."""

    def stepped(self, step: SimulatedStep) -> None:
        """A worker ran a step."""
        self.longest_step_ms = max(self.longest_step_ms, step.ended_ms - step.started_ms)
        for row in step.plan.rows:
            self._runs(row.seq.job_id, step.started_ms)
            self._ran_ms[row.seq.job_id] = step.ended_ms
        self.standstill = 0 if step.outcome.produced or step.outcome.ended else self.standstill + 1
        self.standstills.append(self.standstill)

    def ended(self, record: Record) -> None:
        """A request that was let in is over."""
        self.ends[record.arrival.job_id] += 1
        self._runs(record.arrival.job_id, record.end_ms or 0.0)

    def waited(self, record: Record) -> float:
        """How long a request waited for its first row, or its end without one, in parts of the bound."""
        arrival = record.arrival
        stated = [ms for ms in (arrival.hard_ttft_ms, arrival.deadline_ms) if ms is not None]
        bound_ms = min(stated, default=LANES[arrival.lane].max_wait_ms) + 2.0 * max(self.longest_step_ms, IDLE_MS)
        return (self.begun_ms[arrival.job_id] - arrival.at_ms) / bound_ms

    def _runs(self, job_id: str, now_ms: float) -> None:
        self.begun_ms.setdefault(job_id, now_ms)
        self.longest_pause_ms = max(self.longest_pause_ms, now_ms - self._ran_ms.get(job_id, now_ms))
