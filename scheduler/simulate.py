"""Discrete events in virtual time: the real scheduler over a cost model in place of an accelerator.

A worker's step takes what `Hardware` says that its rows and copies cost; nothing else takes time. Arrivals go straight
to a single policy, or through the real global queue to any number of them. The same arrivals, policies and seed give
the same records, bit for bit. How long an output becomes is the simulator's secret: policies see `max_tokens` alone.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from scheduler.lane_queue import LaneQueue
from scheduler.messages import Job, Lease
from scheduler.outcomes import Outcome
from scheduler.queue_types import Publication, QueueError
from scheduler.steps import Capacity, Ended, SeqId, StepOutcome, StepPlan, StepResult
from scheduler.workload import END_TOKEN, Arrival, Hardware, Record

IDLE_MS = 50.0
"""How long a worker rests whose plan was empty although it has work, as the real one does."""
MOST_RESTS = 100_000
"""Empty plans in a row after which a policy is taken to be stuck."""


class StuckError(RuntimeError):
    """A policy has work and plans nothing, for ever."""


class Policy(Protocol):
    """What schedules one worker: the planner, or one to compare it with."""

    @property
    def has_work(self) -> bool:
        """A further step would do something."""
        ...

    def add(self, lease: Lease, now_ms: float) -> None:
        """Take up a job."""
        ...

    def plan(self, now_ms: float) -> StepPlan:
        """Decide the next step."""
        ...

    def apply(self, result: StepResult, now_ms: float) -> StepOutcome:
        """Take in what came out of it."""
        ...

    def collect(self) -> StepOutcome:
        """What ended without a step."""
        ...

    def capacity(self) -> Capacity:
        """What could be started in the next step."""
        ...


Door = Callable[[Arrival, float], bool | None]
"""Decides at arrival: True admits as guaranteed, False as best effort, None refuses."""


class Step(NamedTuple):
    """One step of one worker, done."""

    worker: int
    started_ms: float
    ended_ms: float
    plan: StepPlan
    outcome: StepOutcome


class Observer(Protocol):
    """Watches a simulation: counts service, draws curves, shows progress."""

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """A request came, and was let in."""

    def stepped(self, step: Step) -> None:
        """A worker ran a step."""


@dataclass(slots=True)
class _Worker:
    policy: Policy
    busy: bool = False
    rests: int = 0


@dataclass
class Simulation:
    """One run. With a `queue`, arrivals wait there for whichever worker has room; without, there is one policy."""

    arrivals: Iterable[Arrival]
    policies: Sequence[Policy]
    hardware: Hardware
    queue: LaneQueue | None = None
    door: Door | None = None
    observers: Sequence[Observer] = ()
    seed: int = 0
    until_ms: float = math.inf
    """When to stop, whatever is not over by then."""
    records: dict[str, Record] = field(default_factory=dict)
    now_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.queue is None and len(self.policies) != 1:
            raise ValueError(f"{len(self.policies)} policies need a queue before them")
        self._workers = [_Worker(policy) for policy in self.policies]
        self._random = random.Random(self.seed)
        self._events: list[tuple[float, int, int]] = []
        """(time, order, worker) of steps to begin; workers without one sleep."""
        self._order = 0
        self._ends: dict[int, tuple[float, StepPlan, float, float]] = {}

    def run(self) -> dict[str, Record]:
        """Play it to the end; the records by flight, in order of arrival. Raises StuckError."""
        coming = iter(self.arrivals)
        arrival = next(coming, None)
        while self.now_ms <= self.until_ms:
            at_ms = self._events[0][0] if self._events else math.inf
            if arrival is not None and arrival.at_ms <= at_ms:
                self.now_ms = arrival.at_ms
                self._arrive(arrival)
                arrival = next(coming, None)
            elif self._events:
                self.now_ms, _, worker = heapq.heappop(self._events)
                self._turn(worker)
            else:
                break
        return self.records

    def _arrive(self, arrival: Arrival) -> None:
        record = self.records[arrival.flight_id] = Record(arrival)
        guaranteed = False if self.door is None else self.door(arrival, self.now_ms)
        if guaranteed is None or not self._let_in(arrival.job(guaranteed=guaranteed)):
            record.outcome, record.end_ms = Outcome.REJECTED, self.now_ms
            return
        for observer in self.observers:
            observer.arrived(arrival, self.now_ms)
        for number, worker in enumerate(self._workers):
            if not worker.busy:
                self._wake(number, self.now_ms)

    def _let_in(self, job: Job) -> bool:
        if self.queue is None:
            self.policies[0].add(Lease(job=job, epoch=1, arrived_ms_ago=0.0), self.now_ms)
            return True
        try:
            self.queue.put(int(self.now_ms), job)
        except QueueError:
            return False
        return True

    def _wake(self, number: int, at_ms: float) -> None:
        self._workers[number].busy = True
        self._order += 1
        heapq.heappush(self._events, (at_ms, self._order, number))

    def _turn(self, number: int) -> None:
        """A step's end, or the moment to plan one."""
        if number in self._ends:
            self._finish(number)
        worker = self._workers[number]
        self._take(number)
        worker.busy = worker.policy.has_work
        if not worker.busy:
            return
        plan = worker.policy.plan(self.now_ms)
        if plan.is_empty:
            self._close(number, worker.policy.collect().ended)
            worker.rests += 1
            if worker.rests > MOST_RESTS:
                raise StuckError(f"worker {number} has work and plans nothing since {MOST_RESTS} turns")
            self._wake(number, self.now_ms + IDLE_MS)
            return
        worker.rests = 0
        self._begin(number, plan)

    def _begin(self, number: int, plan: StepPlan) -> None:
        noise = math.exp(self._random.gauss(0.0, self.hardware.noise)) if self.hardware.noise else 1.0
        run_ms = self.hardware.step_ms(plan.features) * noise
        copy_ms = self.hardware.copy_ms(plan.copies)
        self._ends[number] = (self.now_ms, plan, run_ms, copy_ms)
        self._wake(number, self.now_ms + run_ms + copy_ms + self.hardware.overhead_ms)

    def _finish(self, number: int) -> None:
        started_ms, plan, run_ms, copy_ms = self._ends.pop(number)
        tokens = {row.seq: self._sample(row.seq, row.output_index) for row in plan.rows if row.samples}
        for row in plan.rows:
            self.records[row.seq.flight_id].computed += len(row.token_ids)
        result = StepResult(number=plan.number, tokens=tokens, run_ms=run_ms, copy_ms=copy_ms)
        outcome = self._workers[number].policy.apply(result, self.now_ms)
        for produced in outcome.produced:
            self.records[produced.seq.flight_id].produced(produced.index, self.now_ms)
        self._close(number, outcome.ended)
        self._publish(number, outcome)
        for observer in self.observers:
            observer.stepped(Step(number, started_ms, self.now_ms, plan, outcome))

    def _sample(self, seq: SeqId, index: int) -> int:
        return END_TOKEN if index + 1 >= self.records[seq.flight_id].arrival.output_tokens else 0

    def _close(self, number: int, ended: Iterable[Ended]) -> None:
        for end in ended:
            record = self.records[end.flight_id]
            record.outcome, record.end_ms, record.preemptions = end.outcome, self.now_ms, end.preemptions

    def _take(self, number: int) -> None:
        if self.queue is not None:
            self.queue.renew(int(self.now_ms), str(number))
            worker = self._workers[number]
            for lease in self.queue.take(int(self.now_ms), str(number), worker.policy.capacity()).leases:
                worker.policy.add(lease, self.now_ms)

    def _publish(self, number: int, outcome: StepOutcome) -> None:
        if self.queue is None:
            return
        self.queue.publish("gateway", str(number), list(_publications(outcome)))
        self.queue.events.clear()
        self.queue.forget([end.flight_id for end in outcome.ended])


def _publications(outcome: StepOutcome) -> Iterator[Publication]:
    ends = {end.flight_id: end.outcome for end in outcome.ended}
    tokens: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {}
    for one in outcome.produced:
        tokens.setdefault(one.seq.flight_id, []).append((one.seq.choice, one.index, (one.token_id,)))
    for flight_id in {**outcome.charges, **ends}:
        yield Publication(
            flight_id=flight_id,
            epoch=1,
            tokens=tuple(tokens.get(flight_id, ())),
            cost=outcome.charges.get(flight_id, 0.0),
            ends=ends.get(flight_id),
        )
