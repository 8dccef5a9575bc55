"""Discrete-event simulation: the real scheduler, with a cost model in place of an accelerator.

A worker's step takes the time that `Hardware` gives for its rows and copies; nothing else takes time. The same
arrivals, policies and seed give the same records. Policies see only `max_tokens`, not the output lengths."""

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from fairlane.scheduler.admission.decide import UNPROMISED, Admitted
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Capacity, Ended, StepFeatures, StepOutcome, StepPlan, StepResult
from fairlane.scheduler.protocol.messages import Job, Lease, Outcome
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.queue.prefix_affinity import prefix_keys
from fairlane.scheduler.queue.types import Progress, Put, QueueError
from fairlane.scheduler.simulation.cruise import CoastObserver, Cruise
from fairlane.scheduler.simulation.workload import END_TOKEN, Arrival, Hardware, Record
from fairlane.store import bounds

# Pause of a worker whose plan was empty although it has work, as in the real one.
IDLE_MS = 50.0
# Consecutive empty plans after which a policy counts as stuck.
MAX_RESTS = 100_000


class StuckError(RuntimeError):
    """A policy has work but never plans any, or jobs wait that no worker takes."""


class Policy(Protocol):
    """Schedules one worker: the planner, or a baseline to compare it with."""

    @property
    def has_work(self) -> bool: ...

    def add(self, lease: Lease, now_ms: float) -> None: ...

    def plan(self, now_ms: float) -> StepPlan: ...

    def apply(self, result: StepResult, now_ms: float) -> StepOutcome: ...

    def collect(self) -> StepOutcome: ...

    def capacity(self) -> Capacity: ...


AdmissionCheck = Callable[[Arrival, float], Admitted | None]


class SimulatedStep(NamedTuple):
    """One completed step of one worker."""

    worker: int
    started_ms: float
    ended_ms: float
    plan: StepPlan
    outcome: StepOutcome
    run_ms: float
    # Time of the copies, in which no row runs.
    copy_ms: float


class SimulationObserver(Protocol):
    """Observes a simulation: counts service, draws curves, shows progress."""

    def arrived(self, arrival: Arrival, now_ms: float) -> None: ...

    def stepped(self, step: SimulatedStep) -> None: ...

    def ended(self, record: Record) -> None: ...


@dataclass(slots=True)
class _Worker:
    policy: Policy
    rests: int = 0
    slept_ms: float = -math.inf
    held: dict[str, int] = field(default_factory=dict)
    cruise: Cruise | None = None


@dataclass
class Simulation:
    """One run. With a `queue`, arrivals wait there for any worker with room; without one, there is one policy."""

    arrivals: Iterable[Arrival]
    policies: Sequence[Policy]
    hardware: Hardware
    queue: LaneQueue | None = None
    admission: AdmissionCheck | None = None
    # An idle worker with a prompt's prefix gets the job first.
    has_affinity: bool = False
    observers: Sequence[SimulationObserver] = ()
    seed: int = 0
    until_ms: float = math.inf
    records: dict[str, Record] = field(default_factory=dict)
    now_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.queue is None and len(self.policies) != 1:
            raise ValueError(f"{len(self.policies)} policies need a queue")
        self._workers = [_Worker(policy) for policy in self.policies]
        self._random = random.Random(self.seed)
        # (time, order, event): steps to begin; workers without one sleep.
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._asleep = [number for number in range(len(self._workers)) if self._serves(number)]
        self._ends: dict[int, tuple[float, StepPlan, float, float]] = {}

    def _serves(self, number: int) -> bool:
        return True

    def run(self) -> dict[str, Record]:
        """Run to the end and return the records by job, in order of arrival.

        Raises StuckError, and ValueError if arrivals are out of order or share a job."""
        self._coast_observers = [one for one in self.observers if isinstance(one, CoastObserver)]
        self._coasts = len(self._coast_observers) == len(self.observers)
        coming = iter(self.arrivals)
        arrival = next(coming, None)
        while True:
            turn_ms = self._events[0][0] if self._events else math.inf
            at_ms = turn_ms if arrival is None else min(arrival.at_ms, turn_ms)
            if at_ms == math.inf:
                if self._waiting:
                    raise StuckError(f"{self._waiting} jobs wait, and no worker takes them")
                return self.records
            if at_ms > self.until_ms:
                for number in range(len(self._workers)):
                    self._land(number)
                return self.records
            if arrival is not None and arrival.at_ms <= turn_ms:
                self._arrive(arrival)
                arrival = next(coming, None)
            else:
                self.now_ms, _, event = heapq.heappop(self._events)
                event()

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.at_ms < self.now_ms or arrival.job_id in self.records:
            raise ValueError(f"{arrival.job_id} arrives out of order or twice")
        self.now_ms = arrival.at_ms
        record = self.records[arrival.job_id] = Record(arrival)
        decision = UNPROMISED if self.admission is None else self.admission(arrival, self.now_ms)
        put = None if decision is None else self._admit(arrival.job(decision))
        if put is None:
            record.outcome, record.end_ms = Outcome.REJECTED, self.now_ms
            return
        for observer in self.observers:
            observer.arrived(arrival, self.now_ms)
        if put.preferred:
            self._call_preferred(int(put.preferred))
        if self._asleep and (self._waiting or self.queue is None):
            # One per arrival: idle workers race for jobs, and any of them may win.
            self._wake(self._draw_sleeper(), self.now_ms)

    def _call_preferred(self, number: int) -> None:
        self._take(number)
        if number in self._asleep and self._workers[number].policy.has_work:
            self._asleep.remove(number)
            self._wake(number, self.now_ms)

    def _sleep(self, number: int) -> None:
        self._workers[number].slept_ms = self.now_ms
        others = [one for one in self._asleep if self._workers[one].slept_ms < self.now_ms] if self._waiting else []
        self._asleep.append(number)
        if others:
            next_one = self._random.choice(others)
            self._asleep.remove(next_one)
            self._wake(next_one, self.now_ms)

    def _draw_sleeper(self) -> int:
        place = self._random.randrange(len(self._asleep))
        self._asleep[place], self._asleep[-1] = self._asleep[-1], self._asleep[place]
        return self._asleep.pop()

    def _admit(self, job: Job) -> Put | None:
        now_ms, prefixes = int(self.now_ms), b""
        if self.queue is None:
            self._land(0)
            self.policies[0].add(Lease(job=job, epoch=1, arrived_ms_ago=0.0), self.now_ms)
            return Put(0, guaranteed=job.guaranteed)
        if self.has_affinity:
            prefixes = prefix_keys(job)
            for number in filter(self._serves, range(len(self._workers))):
                self.queue.renew(now_ms, str(number))
        try:
            return self.queue.put(now_ms, job, prefixes=prefixes)
        except QueueError:
            return None

    def _wake(self, number: int, at_ms: float) -> None:
        self._at(at_ms, partial(self._turn, number))

    def _at(self, at_ms: float, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_ms, self._order, event))

    def _turn(self, number: int) -> None:
        worker = self._workers[number]
        if worker.cruise is not None:
            worker.cruise.end(number, self.now_ms, self._coast_observers)
        elif number in self._ends:
            self._finish(number)
        self._take(number)
        if not worker.policy.has_work:
            self._sleep(number)
            return
        if self._coasts and isinstance(worker.policy, Planner) and self._go_on(number, worker, worker.policy):
            return
        self._land(number)
        plan = worker.policy.plan(self.now_ms)
        if plan.is_empty:
            self._rest(number, worker)
        else:
            worker.rests = 0
            self._begin(number, plan)

    def _rest(self, number: int, worker: _Worker) -> None:
        outcome = worker.policy.collect()
        self._close(outcome.ended)
        self._publish(number, outcome)
        worker.rests += 1
        if worker.rests > MAX_RESTS:
            raise StuckError(f"worker {number} has work but planned nothing in {MAX_RESTS} turns")
        self._wake(number, self.now_ms + (0.0 if outcome.ended else IDLE_MS))

    def _go_on(self, number: int, worker: _Worker, planner: Planner) -> bool:
        cruise = worker.cruise
        if cruise is None and (coast := planner.coast(self.now_ms)):
            cruise = Cruise(coast, self.records, self.queue, worker.held)
        work = None if cruise is None else cruise.begin(self.now_ms)
        if cruise is None or work is None:
            return False
        worker.cruise, worker.rests = cruise, 0
        cruise.run_ms = self._run_ms(work)
        self._wake(number, self.now_ms + cruise.run_ms + self.hardware.overhead_ms)
        return True

    def _land(self, number: int) -> None:
        """Apply all steps that a worker ran without plans; its running step continues as if it had been planned."""
        worker, cruise = self._workers[number], self._workers[number].cruise
        if cruise is not None and isinstance(worker.policy, Planner):
            worker.cruise = None
            cruise.land(number, self.now_ms, self._coast_observers)
            plan = worker.policy.land(cruise.coast)
            if not plan.is_empty:
                self._ends[number] = (cruise.started_ms, plan, cruise.run_ms, 0.0)

    def _run_ms(self, work: StepFeatures) -> float:
        noise = math.exp(self._random.gauss(0.0, self.hardware.noise)) if self.hardware.noise else 1.0
        return self.hardware.step_ms(work) * noise

    def _begin(self, number: int, plan: StepPlan) -> None:
        run_ms = self._run_ms(plan.features)
        copy_ms = self.hardware.copy_ms(plan.copies)
        self._ends[number] = (self.now_ms, plan, run_ms, copy_ms)
        self._wake(number, self.now_ms + run_ms + copy_ms + self.hardware.overhead_ms)

    def _finish(self, number: int) -> None:
        started_ms, plan, run_ms, copy_ms = self._ends.pop(number)
        tokens, records = {}, self.records
        for row in plan.rows:
            record = records[row.seq.job_id]
            record.computed += len(row.token_ids)
            if row.samples:
                arrival = record.arrival
                is_last = row.output_index + 1 >= arrival.output_tokens
                tokens[row.seq] = END_TOKEN if is_last else arrival.own_token
        result = StepResult(number=plan.number, tokens=tokens, run_ms=run_ms, copy_ms=copy_ms)
        outcome = self._workers[number].policy.apply(result, self.now_ms)
        for produced in outcome.produced:
            record = records[produced.seq.job_id]
            record.produced(produced.index, self.now_ms)
            record.cached += produced.cached_tokens
        for observer in self.observers:
            observer.stepped(SimulatedStep(number, started_ms, self.now_ms, plan, outcome, run_ms, copy_ms))
        self._close(outcome.ended)
        self._publish(number, outcome)

    def _close(self, ended: Iterable[Ended]) -> None:
        for end in ended:
            record = self.records[end.job_id]
            record.outcome, record.end_ms, record.preemptions = end.outcome, self.now_ms, end.preemptions
            for observer in self.observers:
                observer.ended(record)

    def _take(self, number: int) -> None:
        if self.queue is None or not self._serves(number):
            return
        worker, more = self._workers[number], True
        policy = worker.policy
        while more and self._waiting:
            if worker.cruise is not None:
                worker.cruise.coast.sync()
            leases = self.queue.take(int(self.now_ms), str(number), policy.capacity())
            if leases:
                self._land(number)
            for lease in leases:
                worker.held[lease.job.job_id] = lease.epoch
                policy.add(self._with_output(lease), self.now_ms)
            more = self._close_expired(self.queue) or len(leases) == bounds.JOBS_PER_CALL

    def _with_output(self, lease: Lease) -> Lease:
        """Return a lease with the tokens that its gateway has. No worker returns jobs here."""
        return lease

    def _close_expired(self, queue: LaneQueue) -> bool:
        ends = queue.events.pop("gateway", [])
        self._close(Ended(end.job_id, end.outcome, end.error) for end in ends)
        queue.forget(end.job_id for end in ends)
        return bool(ends)

    @property
    def _waiting(self) -> int:
        return 0 if self.queue is None else self.queue.queued

    def _publish(self, number: int, outcome: StepOutcome) -> None:
        if self.queue is None:
            return
        held = self._workers[number].held
        self.queue.report(str(number), self._progress(outcome, held))
        self.queue.forget(end.job_id for end in outcome.ended)
        for end in outcome.ended:
            held.pop(end.job_id, None)

    def _progress(self, outcome: StepOutcome, held: Mapping[str, int]) -> Iterator[Progress]:
        ends = {end.job_id: end.outcome for end in outcome.ended}
        for job_id in {**outcome.charges, **ends}:
            tokens, cost = self.records[job_id].tokens, outcome.charges.get(job_id, 0.0)
            yield Progress(job_id, held[job_id], tokens, cost, ends.get(job_id))
