"""Admission in a simulation: gateways decide each arrival from workers' last reports.

Several gateways know each other's requests as real ones do: by reports as old as the last exchange."""

import random
from collections.abc import Sequence
from typing import Protocol

from fairlane.scheduler.admission.decide import Admitted, assess
from fairlane.scheduler.admission.open_requests import OpenRequests, Request, decode_reports, encode_report
from fairlane.scheduler.planner.capacity import Counts
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.fading import FadingRatio
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome, WorkerStatus
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import Death, SimulatedStep
from fairlane.scheduler.simulation.workload import Arrival, Record


class Counted(Protocol):
    """A policy that counts its sequences by state."""

    def counts(self) -> Counts: ...


class SimulatedAdmission:
    """The gateways of a simulation with identical workers, and an observer of it; a request goes to a random gateway.

    With a `heartbeat_ms`, workers report at that interval, and each gateway reads the reports and exchanges its own
    twice as often, as real gateways do. Without it, a gateway's knowledge is never stale. A dead worker is reported
    until its lease has expired. `costs`: the workers' cost model at startup."""

    def __init__(
        self,
        policies: Sequence[Counted],
        *,
        kv_tokens: int,
        block_size: int,
        max_sequences: int,
        queue: LaneQueue | None = None,
        gateways: int = 1,
        heartbeat_ms: float = 0.0,
        deaths: Sequence[Death] = (),
        seed: int = 0,
        costs: CostModel | None = None,
    ) -> None:
        # Jobs with guaranteed deadlines.
        self.guaranteed: set[str] = set()
        self._policies = policies
        self._blocks = kv_tokens // block_size
        self._block_size = block_size
        self._max_sequences = max_sequences
        self._queue = queue
        self._lapses_ms = {death.worker: death.lapses_ms for death in deaths}
        self._gateways = [OpenRequests(DEFAULT_LANES) for _ in range(gateways)]
        self._gateway_of: dict[str, OpenRequests] = {}
        self._random = random.Random(seed)
        self._heartbeat_ms = heartbeat_ms
        # When each worker reports next.
        self._beats = [-self._random.random() * heartbeat_ms for _ in policies]
        self._look_ms = heartbeat_ms / 2.0
        # When each gateway reads the reports next.
        self._looks = [-self._random.random() * self._look_ms for _ in self._gateways]
        self._views: list[Sequence[WorkerStatus]] = [()] * gateways
        self._reported: dict[int, WorkerStatus] = {}
        self._costs = costs or CostModel()
        self._step_ms = FadingRatio()
        # Whether the last arrival was guaranteed.
        self._promised = False

    def decide(self, arrival: Arrival, now_ms: float) -> Admitted | None:
        """Return the decision of the request's gateway; None rejects."""
        number = self._random.randrange(len(self._gateways)) if len(self._gateways) > 1 else 0
        gateway, workers, asked = self._gateways[number], self._workers_at(number, now_ms), _request(arrival)
        answer = assess(asked, workers=workers, open_requests=gateway, now_ms=now_ms)
        if isinstance(answer, Admitted):
            self._gateway_of[arrival.job_id] = gateway
            self._promised = answer.guaranteed
            return answer
        if answer.code == "deadline_unattainable" and answer.retry_after_ms is not None:
            gateway.refuse(asked, now_ms)
        return None

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """Record that the last decided request was admitted, also by the queue."""
        if self._queue is not None:
            record = self._queue.record(arrival.job_id)
            self._promised = record is not None and record.guaranteed
        if self._promised:
            self.guaranteed.add(arrival.job_id)
        gateway = self._gateway_of.setdefault(arrival.job_id, self._gateways[0])
        gateway.enter(arrival.job_id, _request(arrival), guaranteed=self._promised, now_ms=now_ms)

    def stepped(self, step: SimulatedStep) -> None:
        """Learn from a step how fast the worker is, and how far its requests have come."""
        self._step_ms.add(step.run_ms + step.copy_ms)
        self._costs.observe(step.plan.features, step.run_ms, step.plan.copies, step.copy_ms)
        for produced in step.outcome.produced:
            job_id = produced.seq.job_id
            self._gateway_of[job_id].produced(job_id, produced.index + 1, step.ended_ms)
        if step.ended_ms >= self._beats[step.worker]:
            self._report(step.worker, step.ended_ms)

    def ended(self, record: Record) -> None:
        gateway = self._gateway_of.pop(record.arrival.job_id)
        gateway.leave(record.arrival.job_id, finished=record.outcome is Outcome.FINISHED)

    def _workers_at(self, number: int, now_ms: float) -> Sequence[WorkerStatus]:
        """Return the workers that a gateway knows now; if it reads their reports, it exchanges its own too."""
        if self._heartbeat_ms and now_ms < self._looks[number]:
            return self._views[number]
        for worker, beat_ms in enumerate(self._beats):
            if now_ms >= beat_ms:
                self._report(worker, now_ms)
        alive = (worker for worker in self._reported if now_ms < self._lapses_ms.get(worker, now_ms + 1.0))
        self._views[number] = tuple(self._reported[worker] for worker in sorted(alive))
        if self._queue is not None:
            gateway = self._gateways[number]
            exchanged = self._queue.exchange_reports(
                int(now_ms), str(number), encode_report(gateway.report(now_ms)), gateway.refused_us()
            )
            gateway.receive_reports(decode_reports(exchanged.reports), exchanged.asked, now_ms)
        self._looks[number] = _next(self._looks[number], self._look_ms, now_ms)
        return self._views[number]

    def _report(self, worker: int, now_ms: float) -> None:
        self._reported[worker] = self._status(self._policies[worker])
        self._beats[worker] = _next(self._beats[worker], self._heartbeat_ms, now_ms)

    def _status(self, policy: Counted) -> WorkerStatus:
        counts = policy.counts()
        return WorkerStatus(
            worker_id="worker",
            model="model",
            queue="queue",
            card_sha256="",
            started_at_ms=0.0,
            block_size=self._block_size,
            blocks_total=self._blocks,
            max_sequences=self._max_sequences,
            running=counts.running,
            waiting=counts.waiting,
            preempted=counts.preempted,
            step_ms=self._step_ms.value,
            single_stream_ms=self._costs.single_stream_ms,
            step_weights=self._costs.step_weights() if self._costs.has_learnt else (),
        )


def _next(planned_ms: float, every_ms: float, now_ms: float) -> float:
    return planned_ms + every_ms * (1 + (now_ms - planned_ms) // every_ms) if every_ms else now_ms


def _request(arrival: Arrival) -> Request:
    return Request(
        lane=arrival.lane,
        tenant=arrival.tenant,
        prompt_tokens=arrival.prompt_tokens,
        max_tokens=arrival.max_tokens,
        choices=arrival.choices,
        deadline_ms=arrival.deadline_ms,
        ttft_ms=arrival.hard_ttft_ms,
    )
